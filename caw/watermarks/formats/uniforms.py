"""Uniform numbers that others draw with torch's CPU generator: torch.rand(V) after manual_seed(seed).

torch.rand(V)[t] is (number t of MT19937 & 0xFFFFFF) / 2^24 in float32, whatever V: a token needs t + 1 draws.
"""

from __future__ import annotations

import torch

from caw import ops

BITS = 24


def rand_at(seeds: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """torch.rand(V)[tokens] of the generators of seeds (int64, broadcast against tokens >= 0) -> float64 in [0, 1)."""
    seeds, tokens = torch.broadcast_tensors(seeds, tokens)
    words = ops.generator_words(seeds.reshape(-1).contiguous(), tokens.reshape(-1).contiguous())
    return ((words & ((1 << BITS) - 1)).double() / (1 << BITS)).reshape(tokens.shape)
