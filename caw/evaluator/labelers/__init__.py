"""Labelers: reference answers in, character spans of the segments that carry their quality out (`caw label`)."""

from caw.evaluator.labelers.base import Labeler, LabelError, label_documents
from caw.evaluator.labelers.counterfactual import CounterfactualLabeler
from caw.evaluator.labelers.endpoint import EndpointLabeler
from caw.evaluator.labelers.lexical import LexicalLabeler

__all__ = [
    "CounterfactualLabeler",
    "EndpointLabeler",
    "LabelError",
    "Labeler",
    "LexicalLabeler",
    "label_documents",
]
