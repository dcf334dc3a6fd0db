"""Labelers: from reference answers to character spans of their key segments (`caw label`)."""

from typing import TYPE_CHECKING

from caw.lazy import lazy_names

if TYPE_CHECKING:
    from caw.fitting.labelers.base import Labeler, LabelError, label_documents
    from caw.fitting.labelers.counterfactual import CounterfactualLabeler
    from caw.fitting.labelers.endpoint import EndpointLabeler
    from caw.fitting.labelers.lexical import LexicalLabeler
else:  # only one of them needs a model
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            **dict.fromkeys(("Labeler", "LabelError", "label_documents"), "caw.fitting.labelers.base"),
            "CounterfactualLabeler": "caw.fitting.labelers.counterfactual",
            "EndpointLabeler": "caw.fitting.labelers.endpoint",
            "LexicalLabeler": "caw.fitting.labelers.lexical",
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
