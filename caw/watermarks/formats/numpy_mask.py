"""MarkLLM's Unigram mask: NumPy's generator, the same on every device.

mask = int(gamma V) times True, then False, shuffled by default_rng(seed); seed = the first 4 bytes, little-endian,
of sha256 of the key as a little-endian int64.
"""

from __future__ import annotations

import copy
import hashlib
from functools import lru_cache

import numpy as np

from caw.arrays import beside, float64, space_of, torch
from caw.watermarks.base import TokenScores
from caw.watermarks.formats.foreign import ForeignScheme, require_two_lists
from caw.watermarks.green_list import GreenScheme


def numpy_mask(key: int, gamma: float, vocab_size: int) -> np.ndarray:
    """Return which tokens are green, bool [V]; key below 2^63."""
    seed = hashlib.sha256(key.to_bytes(8, "little")).digest()[:4]
    return _shuffled(int.from_bytes(seed, "little"), gamma, vocab_size)


@lru_cache(maxsize=64)  # by the seed, so that no key outlives its use
def _shuffled(seed: int, gamma: float, vocab_size: int) -> np.ndarray:
    mask = np.arange(vocab_size) < int(gamma * vocab_size)
    np.random.default_rng(seed).shuffle(mask)
    return mask


class MaskList(ForeignScheme, GreenScheme):
    """One mask for every position; tokens beyond it are not green."""

    _mask: torch.Tensor | None = None  # where a placed scheme keeps it
    width = 0

    def __init__(self, format_name: str, secret: int, gamma: float, size: int | None) -> None:
        require_two_lists(gamma, size)
        self.gamma = gamma
        super().__init__(format_name, secret, 0, size)

    @property
    def mask(self) -> np.ndarray | torch.Tensor:
        """Return which tokens are green, bool [V]; not cached, because a detector tries many keys."""
        return numpy_mask(self.keys[0], self.gamma, self.vocab_size) if self._mask is None else self._mask

    def placed(self, device: torch.device) -> MaskList:
        other = copy.copy(self)
        other._mask = torch.as_tensor(self.mask).to(device)
        return other

    @property
    def fraction(self) -> float:
        return float(self.mask.sum()) / self.vocab_size

    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        inside = (tokens >= 0) & (tokens < self.vocab_size)
        return beside(self.mask, tokens)[space_of(tokens).where(inside, tokens, 0)] & inside

    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        return self.green_tokens(context, torch.arange(vocab_size, device=context.device)).expand(context.shape[0], -1)

    def score_ref(self, ids: torch.Tensor) -> TokenScores:
        return TokenScores(float64(self.green_tokens(ids[:, None], ids)), ids[:, None], ids == ids)
