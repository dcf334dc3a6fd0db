"""MarkLLM's Unigram mask: NumPy's generator, the same on every device.

mask = int(gamma V) times True, then False, shuffled by default_rng(seed); seed = the first 4 bytes, little-endian,
of sha256 of the key as a little-endian int64.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def numpy_mask(key: int, gamma: float, vocab_size: int) -> torch.Tensor:
    """Which tokens are green, bool [V]; key below 2^63."""
    seed = int.from_bytes(hashlib.sha256(key.to_bytes(8, "little")).digest()[:4], "little")
    mask = np.arange(vocab_size) < int(gamma * vocab_size)
    np.random.default_rng(seed).shuffle(mask)
    return torch.from_numpy(mask)
