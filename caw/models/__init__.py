"""Models: loading one and its tokenizer, what the library asks about it (`facts`), what it says of texts."""

from caw.lazy import lazy_names

TYPE_CHECKING = False  # typing's own name costs an import
if TYPE_CHECKING:
    from caw.models.load import load_model, load_tokenizer
    from caw.models.model_weights import ModelWeights
    from caw.models.sources import DEMO_MODEL
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            **dict.fromkeys(("load_model", "load_tokenizer"), "caw.models.load"),
            "DEMO_MODEL": "caw.models.sources",
            "ModelWeights": "caw.models.model_weights",
        },
    )

__all__ = ["DEMO_MODEL", "ModelWeights", "load_model", "load_tokenizer"]
