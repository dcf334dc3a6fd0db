"""Models: loading a model and its tokenizer, facts about it (`facts`), and reading texts with it."""

from caw.lazy import lazy_names

TYPE_CHECKING = False  # typing's own name costs an import
if TYPE_CHECKING:
    from caw.models.load import load_model
    from caw.models.reader_weights import ReaderWeights
    from caw.models.sources import DEMO_MODEL
    from caw.models.tokenizer import load_tokenizer
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "caw.models.load": "load_model",
            "caw.models.tokenizer": "load_tokenizer",
            "caw.models.sources": "DEMO_MODEL",
            "caw.models.reader_weights": "ReaderWeights",
        },
    )

__all__ = ["DEMO_MODEL", "ReaderWeights", "load_model", "load_tokenizer"]
