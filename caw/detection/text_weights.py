"""The interface of weights: a level for every token of a text, chosen without the tested key.

Implemented by token-weight tables (`weights.TokenWeights`) and weights from a model (`caw.models.ReaderWeights`). The
detector receives them and knows nothing more: detection imports no model. Given the text, the levels are fixed and only
the key is random, so p-values are exact for any weights. Bad weights only detect less.

A level is a factor of the token's score, or (`ratios`) a probability with which the token was drawn, which decides what
its score is evidence of.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from caw.watermarks import EXP, Watermark

MOST = 15  # levels 0..15: rounding them costs less than a thousandth of the information


class TextWeights(ABC):
    """A weight level 0..15 for each token of a text; level 0 excludes the token."""

    @property
    def ratios(self) -> bool:
        """Whether levels are 0..63 and stand for probabilities of drawn tokens; see `detection.ratios`."""
        return False

    def are_for(self, watermark: Watermark) -> bool:
        """Whether the weights are for this part of a watermark of drawn and of greedy texts."""
        return self.ratios == watermark.races_whole

    @property
    @abstractmethod
    def name(self) -> str:
        """Their name in receipts; empty if they have none."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """SHA-256, in hex, of everything that determines the levels except the text and the watermark's parameters."""

    @abstractmethod
    def check_for(self, watermark: Watermark) -> None:
        """Raise ValueError if the weights were made under the key to be tested, or do not fit the watermark."""

    @abstractmethod
    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raise ValueError if ids of this tokenizer (None = ids are given) mean other tokens to the weights."""

    @abstractmethod
    def text_levels(self, texts: Sequence[np.ndarray], watermark: Watermark) -> list[np.ndarray]:
        """Return levels int64 [n] of each text int64 [n], by that text alone and never by the watermark's key."""


def check_weighable(watermark: Watermark) -> None:
    """Raise ValueError unless the exact tail of a weighted sum of this watermark's scores is known."""
    if watermark.null == "bits":
        raise ValueError(f"weights support KGW, Unigram and EXP, got {watermark.name}; leave them out")
    if isinstance(watermark, EXP) and len(watermark.scheme.shares) > 1:
        raise ValueError(f"weights support formats with one key, got {watermark.format!r}; leave them out")


def check_own_key(watermark: Watermark, key_ids: Sequence[str]) -> None:
    """Raise ValueError if the key to be tested is among those of the texts behind the weights."""
    if watermark.key_id in key_ids:
        raise ValueError(
            f"the weights were estimated from texts of the tested key {watermark.key_id}, which would make p-values "
            "too small; make them from texts of other keys"
        )
