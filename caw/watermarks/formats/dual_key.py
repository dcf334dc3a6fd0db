"""vLLM's dual-key Gumbel watermark: each position races with one of two keys."""

from __future__ import annotations

from caw import prf
from caw.arrays import torch
from caw.watermarks.keys import derive_key, signed
from caw.watermarks.race import Race, exponential

ROUTE = b"caw/dual-key route"


class DualKeyRace(Race):
    """A race with two keys.

    Keys A and B are derived from the user's key (domains "key_a", "key_b"). A share `alpha` of the positions races with
    B. A token's score is (1 - alpha) times that under A plus alpha times that under B. vLLM picks the key of a position
    at random. Here the context picks it, under a third key that readers do not need.
    """

    def __init__(self, secret: int, window: int, alpha: float) -> None:
        super().__init__(secret, window, number=None)
        self.alpha, self.shares = alpha, (1 - alpha, alpha)
        self.keys = derive_key(secret, b"key_a"), derive_key(secret, b"key_b"), derive_key(secret, ROUTE)

    def race_keys(self, context: torch.Tensor) -> torch.Tensor:
        route = prf.context_words(self.keys[2], context, 0 * context[:, :1])[:, 0]
        a = torch.full_like(route, signed(self.keys[0]))
        return torch.where(prf.uniform(route) < self.alpha, signed(self.keys[1]), a)

    def values(self, contexts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        a, b = (exponential(prf.context_words(key, contexts, tokens)) for key in self.keys[:2])
        return (1 - self.alpha) * a + self.alpha * b
