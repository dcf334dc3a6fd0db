"""Races on uniform numbers that others draw with torch's CPU generator: torch.rand(V) after manual_seed(seed).

torch.rand(V)[t] is (number t of MT19937 & 0xFFFFFF) / 2^24 in float32 for any V, so a token needs t + 1 draws.

MarkLLM's EXP: F_t = torch.rand(V)[t] after manual_seed(key * (product of the last W tokens of prompt and text, mod V)).
Many products share a remainder (all that are 0 modulo V share a seed that no key changes), so evidence is (seed,
token), and tokens of seed 0 are no evidence; MarkLLM's own detector counts everything.
"""

from __future__ import annotations

import numpy as np

from caw import prf, text_scores
from caw.arrays import clamped, float64, ops, space_of, torch
from caw.watermarks.base import MISSING, TokenScores, contexts_of
from caw.watermarks.formats.foreign import ForeignScheme
from caw.watermarks.formats.seeding import key_times, product_mod
from caw.watermarks.keys import derive_key, signed
from caw.watermarks.race import Race, RaceScheme, exponential

BITS = 24


def rand_at(seeds: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return torch.rand(V)[tokens] of seeds' generators (int64, broadcast with tokens >= 0), float64 in [0, 1)."""
    if isinstance(tokens, np.ndarray):
        seeds, tokens = np.broadcast_arrays(seeds, tokens)
        words = text_scores.generator_words(seeds.reshape(-1), tokens.reshape(-1))
    else:
        seeds, tokens = torch.broadcast_tensors(seeds, tokens)
        words = ops.generator_words(seeds.reshape(-1).contiguous(), tokens.reshape(-1).contiguous())
    return (float64(words & ((1 << BITS) - 1)) / (1 << BITS)).reshape(tokens.shape)


class GeneratorRace(ForeignScheme, RaceScheme):
    """MarkLLM's race."""

    marks_repeats = True

    def seeds(self, context: torch.Tensor) -> torch.Tensor:
        """Return the 32-bit seeds int64 [B, 1] of contexts [B, W]."""
        products = product_mod(clamped(context), self.vocab_size)[:, None]
        return key_times(self.keys[0], products, self.vocab_size, modulus=None)

    def placed(self, device: torch.device) -> GeneratorRace | None:
        return self if device.type != "cuda" or ops.has_kernel("generator_words", "cuda") else None

    def marks(self, context: torch.Tensor) -> torch.Tensor:
        return (context != MISSING).all(1)

    def noise(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return -torch.log(-torch.log(rand_at(self.seeds(context), tokens.clamp_min(0))))

    def score_ref(self, ids: torch.Tensor) -> TokenScores:
        contexts = contexts_of(ids, self.window)
        seeds = self.seeds(contexts)
        space = space_of(ids)
        values = -space.log1p(-rand_at(seeds[:, 0], clamped(ids)))
        evidence = space.concatenate([seeds, ids[:, None]], 1)
        return TokenScores(values, evidence, self.marks(contexts) & (ids != MISSING), keyless=seeds[:, 0] == 0)


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
