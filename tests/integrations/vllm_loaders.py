"""The loaders of a vLLM of which only the Python is there: `python vllm_loaders.py FOLDER`."""

import sys

sys.path.insert(0, sys.argv[1])

from vllm import SamplingParams, __version__
from vllm.v1.sample.logits_processor import validate_logits_processors_parameters as v1
from vllm.v1.worker.gpu.sample.logits_processor import build_custom_logits_processors_params_validator as v2

NAMES = ["caw.integrations.vllm:LogitsProcessor"]
for check in (v2(NAMES), lambda given: v1(NAMES, given)):
    check(SamplingParams(temperature=0.7, repetition_penalty=1.1, extra_args={"caw_profile": "kgw"}))
    try:
        check(SamplingParams(extra_args={"caw_profile": "nobody's"}))
    except Exception as error:
        print(__version__, str(error)[:30])
