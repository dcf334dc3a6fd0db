"""Labelers: reference answers in, character spans of the segments that carry their quality out (`caw label`)."""

from typing import TYPE_CHECKING

from caw.lazy import lazy_names

if TYPE_CHECKING:
    from caw.evaluator.labelers.base import Labeler, LabelError, label_documents
    from caw.evaluator.labelers.counterfactual import CounterfactualLabeler
    from caw.evaluator.labelers.endpoint import EndpointLabeler
    from caw.evaluator.labelers.lexical import LexicalLabeler
else:  # only one of them needs a model
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            **dict.fromkeys(("Labeler", "LabelError", "label_documents"), "caw.evaluator.labelers.base"),
            "CounterfactualLabeler": "caw.evaluator.labelers.counterfactual",
            "EndpointLabeler": "caw.evaluator.labelers.endpoint",
            "LexicalLabeler": "caw.evaluator.labelers.lexical",
        },
    )

__all__ = [
    "CounterfactualLabeler",
    "EndpointLabeler",
    "LabelError",
    "Labeler",
    "LexicalLabeler",
    "label_documents",
]
