"""Texts with a share of their words deleted: what a margin for edits is measured with."""

from __future__ import annotations

import hashlib
import re

import numpy as np

GAP_AND_WORD = re.compile(r"\s*\S+")


def without_words(text: str, share: float, draw: int) -> str:
    """The text without this share of its words (parts between white space), rounded up, each with the gap before it.

    Which words go depends on the text and the number of the draw alone.
    """
    words = GAP_AND_WORD.findall(text)
    seed = hashlib.sha256(f"caw/edits/{draw}\0{text}".encode()).digest()
    order = np.random.default_rng(int.from_bytes(seed[:8], "big")).permutation(len(words))
    gone = set(order[: int(np.ceil(share * len(words) - 1e-9))].tolist())
    return "".join(word for place, word in enumerate(words) if place not in gone).lstrip()
