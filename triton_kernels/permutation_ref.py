"""Reference of `permutation_head` and `permutation_green`: the lists others draw with torch's CPU generator.

A list is torch.randperm(V)[:count] after manual_seed(seed): MT19937, of whose seed only 32 bits count, and a
forward Fisher-Yates shuffle (checked against torch for every vocabulary size in the tests).
"""

from __future__ import annotations

import torch

SEED_MASK = 0xFFFFFFFF
BITS = 32


def permutation_head_ref(seeds: torch.Tensor, vocab_size: int, count: int) -> torch.Tensor:
    """First `count` entries of each seed's permutation of range(vocab_size): seeds int64 [N] -> int64 [N, count]."""
    heads = seeds.new_empty((seeds.shape[0], count))
    generator = torch.Generator()
    for row, seed in enumerate(seeds.tolist()):
        generator.manual_seed(seed & SEED_MASK)
        heads[row] = torch.randperm(vocab_size, generator=generator)[:count].to(seeds.device)
    return heads


def permutation_green_ref(seeds: torch.Tensor, vocab_size: int, count: int) -> torch.Tensor:
    """The same entries as a set: int32 [N, ceil(V / 32)], token t is bit t % 32 of word t // 32."""
    words = (vocab_size + BITS - 1) // BITS
    member = torch.zeros(seeds.shape[0], words * BITS, dtype=torch.int64, device=seeds.device)
    member.scatter_(1, permutation_head_ref(seeds, vocab_size, count), 1)
    packed = (member.view(-1, words, BITS) << torch.arange(BITS, device=seeds.device)).sum(dim=-1)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)
