"""caw: watermarks the text of language models, more gently where words matter, and detects it without the model."""

import os.path

from caw.lazy import lazy_names

# `python -m pytest` from a checkout imports this folder, not the installed package; the kernels lie beside it then
_here = os.path.dirname(os.path.abspath(__file__))
_above = os.path.dirname(_here)
if not os.path.exists(os.path.join(_here, "triton_kernels")) and os.path.exists(os.path.join(_above, "setup.py")):
    __path__.append(_above)

TYPE_CHECKING = False  # typing's own name costs an import
if TYPE_CHECKING:
    from caw.custom_generate import decode
    from caw.decoding.prompt_cache import PromptCache
    from caw.detection import DetectionResult, detect, detect_keys
    from caw.entrance import GenerationOutput, generate, iter_generate
    from caw.models import ModelWeights, load_model
    from caw.policies import CapacityPolicy, EntropyThreshold, FixedStrength, LogitDeltaThreshold
    from caw.watermarks import EXP, KGW, SynthID, Unigram
else:
    # PyTorch alone takes a second to import, so it waits for the first name that needs it
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "decode": "caw.custom_generate",
            "PromptCache": "caw.decoding.prompt_cache",
            "DetectionResult": "caw.detection",
            "detect": "caw.detection",
            "detect_keys": "caw.detection",
            "GenerationOutput": "caw.entrance",
            "generate": "caw.entrance",
            "iter_generate": "caw.entrance",
            "load_model": "caw.models",
            "ModelWeights": "caw.models",
            "CapacityPolicy": "caw.policies",
            "EntropyThreshold": "caw.policies",
            "FixedStrength": "caw.policies",
            "LogitDeltaThreshold": "caw.policies",
            "EXP": "caw.watermarks",
            "KGW": "caw.watermarks",
            "SynthID": "caw.watermarks",
            "Unigram": "caw.watermarks",
        },
    )

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
    "ModelWeights",
    "PromptCache",
    "SynthID",
    "Unigram",
    "__version__",
    "decode",
    "detect",
    "detect_keys",
    "generate",
    "iter_generate",
    "load_model",
]
