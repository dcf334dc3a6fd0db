"""What a detector asks of weights: a level for every token of a text, decided without the key that is tested.

Weights per token id (`weights.TokenWeights`) are such, and weights that a model gives (`caw.models.ModelWeights`). The
detector is handed those and knows nothing more of them: detection imports no model. Given the text, the levels are
fixed and only the key is random, so p-values stay exact whatever the weights are. What is weighed badly is only found
later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from caw.watermarks import EXP, Watermark
from caw.watermarks.green_list import GreenList

MOST = 15  # levels 0..15: rounding them costs less than a thousandth of the information


class TextWeights(ABC):
    """A weight level 0..15 for each token of a text; level 0 leaves the token out."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What receipts call them; empty if they have no name."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """SHA-256, in hex, of everything that decides the levels but the text and the watermark's parameters."""

    @abstractmethod
    def check_for(self, watermark: Watermark) -> None:
        """Raise ValueError where the weights were made under the key to be tested, or do not go with the watermark."""

    @abstractmethod
    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raise ValueError where ids of this tokenizer (None = ids are given) mean other tokens to the weights."""

    @abstractmethod
    def text_levels(self, texts: Sequence[np.ndarray], watermark: Watermark) -> list[np.ndarray]:
        """Levels int64 [n] of each text int64 [n].

        watermark: how texts are marked; its key must not matter. A text's levels depend on that text alone.
        """


def check_weighable(watermark: Watermark) -> None:
    """Raise ValueError unless the exact tail of a weighted sum of this watermark's scores is known."""
    if not isinstance(watermark, GreenList) and watermark.null != "gamma":
        raise ValueError(f"weights serve KGW, Unigram and EXP, got {watermark.name}; leave them out")
    if isinstance(watermark, EXP) and len(watermark.scheme.shares) > 1:
        raise ValueError(f"weights serve one key, got format {watermark.format!r}; leave them out")


def check_own_key(watermark: Watermark, key_ids: Sequence[str]) -> None:
    """Raise ValueError if the key to be tested is among those of the texts that the weights come from."""
    if watermark.key_id in key_ids:
        raise ValueError(
            f"the weights were estimated from texts of key {watermark.key_id}, which is the key to test: p-values "
            "would be too small; make them from texts of other keys"
        )
