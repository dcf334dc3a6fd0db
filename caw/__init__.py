"""caw: watermark the output of language models, lightly where words matter, and detect it without the model."""

from caw.lazy import lazy_names

TYPE_CHECKING = False  # typing's own name costs an import
if TYPE_CHECKING:
    from caw.custom_generate import decode
    from caw.decoding.chooser import Chooser
    from caw.decoding.prompt_cache import PromptCache
    from caw.decoding.row_settings import RowSettings
    from caw.detection import DetectionResult, Detector, detect, detect_keys
    from caw.entrance import GenerationOutput, generate, iter_generate
    from caw.guard import Guard
    from caw.models import ReaderWeights, load_model, load_tokenizer
    from caw.models.sampling import model_sampling
    from caw.policies import CapacityPolicy, EntropyThreshold, FixedStrength, LogitDeltaThreshold
    from caw.policies.recommended import Recommended
    from caw.watermarks import EXP, KGW, SynthID, Unigram
else:
    # PyTorch alone takes a second to import, so it waits for the first name that needs it
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "caw.custom_generate": "decode",
            "caw.decoding.chooser": "Chooser",
            "caw.decoding.prompt_cache": "PromptCache",
            "caw.decoding.row_settings": "RowSettings",
            "caw.detection": "DetectionResult Detector detect detect_keys",
            "caw.entrance": "GenerationOutput generate iter_generate",
            "caw.guard": "Guard",
            "caw.models": "ReaderWeights load_model load_tokenizer",
            "caw.models.sampling": "model_sampling",
            "caw.policies": "CapacityPolicy EntropyThreshold FixedStrength LogitDeltaThreshold",
            "caw.policies.recommended": "Recommended",
            "caw.watermarks": "EXP KGW SynthID Unigram",
        },
    )

__version__ = "0.1.0"
__all__ = [
    "EXP",
    "KGW",
    "CapacityPolicy",
    "Chooser",
    "DetectionResult",
    "Detector",
    "EntropyThreshold",
    "FixedStrength",
    "GenerationOutput",
    "Guard",
    "LogitDeltaThreshold",
    "PromptCache",
    "ReaderWeights",
    "Recommended",
    "RowSettings",
    "SynthID",
    "Unigram",
    "__version__",
    "decode",
    "detect",
    "detect_keys",
    "generate",
    "iter_generate",
    "load_model",
    "load_tokenizer",
    "model_sampling",
]
