"""Labelers: from reference answers to character spans of their key segments (`caw label`)."""

from caw_lab.training.labelers.base import Labeler, LabelError, label_documents
from caw_lab.training.labelers.endpoint import EndpointLabeler
from caw_lab.training.labelers.lexical import LexicalLabeler

__all__ = ["EndpointLabeler", "LabelError", "Labeler", "LexicalLabeler", "label_documents"]
