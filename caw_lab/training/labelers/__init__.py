"""Labelers: from reference answers to character spans of their key segments (`caw label`)."""

from typing import TYPE_CHECKING

from caw.lazy import lazy_names

if TYPE_CHECKING:
    from caw_lab.training.labelers.base import Labeler, LabelError, label_documents
    from caw_lab.training.labelers.counterfactual import CounterfactualLabeler
    from caw_lab.training.labelers.endpoint import EndpointLabeler
    from caw_lab.training.labelers.lexical import LexicalLabeler
else:  # only one of them needs a model
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            **dict.fromkeys(("Labeler", "LabelError", "label_documents"), "caw_lab.training.labelers.base"),
            "CounterfactualLabeler": "caw_lab.training.labelers.counterfactual",
            "EndpointLabeler": "caw_lab.training.labelers.endpoint",
            "LexicalLabeler": "caw_lab.training.labelers.lexical",
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
