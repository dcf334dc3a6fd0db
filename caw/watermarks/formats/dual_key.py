"""vLLM's dual-key Gumbel watermark: each position races with one of two keys.

Keys A and B are derived from the user's key (domains "key_a", "key_b"). A share `alpha` of the positions races with B.
A token's score is (1 - alpha) times that under A plus alpha times that under B. vLLM picks the key of a position at
random. Here the context picks it, under a third key that readers do not need.
"""

from __future__ import annotations

import torch

from caw.triton_kernels import prf_ref as prf
from caw.watermarks.formats.native import Race, exponential
from caw.watermarks.keys import derive_key
from caw.watermarks.scheme import Keys

ROUTE = b"caw/dual-key route"


class DualKeyRace(Race):
    """A race with two keys; keys: A, B and the one that decides between them. alpha: B's share."""

    def __init__(self, secret: int, window: int, alpha: float) -> None:
        self.alpha, self.shares = alpha, (1 - alpha, alpha)
        super().__init__(secret, window, number=None)

    def derive(self, secret: int) -> Keys:
        return derive_key(secret, b"key_a"), derive_key(secret, b"key_b"), derive_key(secret, ROUTE)

    def words(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        a, b = (prf.context_words(key, context, tokens) for key in self.keys[:2])
        route = prf.context_words(self.keys[2], context, torch.zeros_like(context[:, :1]))
        return torch.where(prf.uniform(route) < self.alpha, b, a)

    def values_by_symbol(self, contexts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        a, b = (exponential(prf.context_words(key, contexts, tokens)) for key in self.keys[:2])
        return (1 - self.alpha) * a + self.alpha * b
