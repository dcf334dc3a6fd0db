"""caw: watermarks the output of language models without hurting it, and detects it without the model."""

from pathlib import Path

# `python -m pytest` from a checkout imports this folder, not the installed package; the kernels lie beside it then
if not (Path(__file__).parent / "triton_kernels").exists() and (Path(__file__).parents[1] / "setup.py").exists():
    __path__.append(str(Path(__file__).parents[1]))

from caw.custom_generate import decode
from caw.decoding.prompt_cache import PromptCache
from caw.detection import DetectionResult, detect
from caw.entrance import GenerationOutput, generate, iter_generate
from caw.models import load_model
from caw.policies import CapacityPolicy, EntropyThreshold, FixedStrength, LogitDeltaThreshold
from caw.watermarks import EXP, KGW, SynthID, Unigram

__version__ = "0.1.0"
__all__ = [
    "EXP",
    "KGW",
    "CapacityPolicy",
    "DetectionResult",
    "EntropyThreshold",
    "FixedStrength",
    "GenerationOutput",
    "LogitDeltaThreshold",
    "PromptCache",
    "SynthID",
    "Unigram",
    "__version__",
    "decode",
    "detect",
    "generate",
    "iter_generate",
    "load_model",
]
