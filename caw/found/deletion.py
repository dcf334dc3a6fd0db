"""Texts with a share of their words deleted: what a margin for edits is measured with."""

from __future__ import annotations

import hashlib
import re

import numpy as np

# kana and Chinese characters, and Thai, Lao, Burmese and Khmer ones
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff"
)
GAP_AND_WORD = re.compile(rf"\s*(?:[{UNSPACED}]|[^\s{UNSPACED}]+)")


def without_words(text: str, share: float, draw: int) -> str:
    """The text without this share of its words, rounded up, each with the gap before it.

    Words are parts between white space, and single characters of scripts that write without it (Chinese, Japanese,
    Thai, Lao, Burmese, Khmer). Which words go depends on the text and the number of the draw alone.
    """
    words = GAP_AND_WORD.findall(text)
    seed = hashlib.sha256(f"caw/edits/{draw}\0{text}".encode()).digest()
    order = np.random.default_rng(int.from_bytes(seed[:8], "big")).permutation(len(words))
    gone = set(order[: int(np.ceil(share * len(words) - 1e-9))].tolist())
    return "".join(word for place, word in enumerate(words) if place not in gone).lstrip()
