"""Reference of the `permutation_...` ops and `generator_words`: what others draw with torch's CPU generator.

A list is torch.randperm(V)[:count] after manual_seed(seed): MT19937, of whose seed only 32 bits count, and a
forward Fisher-Yates shuffle (checked against torch for every vocabulary size in the tests).
"""

import torch

from caw import text_scores

SEED_MASK = 0xFFFFFFFF
BITS = 32


def permutation_green_ref(
    seeds: torch.Tensor, vocab_size: int, count: int, wanted: torch.Tensor | None = None
) -> torch.Tensor:
    """First `count` entries of each seed's permutation of range(vocab_size), as a set.

    seeds int64 [N] -> int32 [N, ceil(V / 32)], token t is bit t % 32 of word t // 32.

    wanted: bool [N], sets of other rows are empty; None = all are.
    """
    words = (vocab_size + BITS - 1) // BITS
    member = torch.zeros(seeds.shape[0], words * BITS, dtype=torch.int64, device=seeds.device)
    member.scatter_(1, _heads(seeds, vocab_size, count), 1)
    if wanted is not None:
        member *= wanted[:, None]
    packed = (member.view(-1, words, BITS) << torch.arange(BITS, device=seeds.device)).sum(dim=-1)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def permutation_contains_ref(seeds: torch.Tensor, tokens: torch.Tensor, vocab_size: int, count: int) -> torch.Tensor:
    """Return whether tokens[i] is among the first `count` entries of the permutation of seeds[i]: int64 [N] twice ->
    bool [N].

    Tokens outside [0, vocab_size) are in no list.
    """
    found = torch.zeros_like(tokens, dtype=torch.bool)
    low = seeds & SEED_MASK
    for seed in low.unique():
        asks = low == seed
        found[asks] = torch.isin(tokens[asks], _heads(seed[None], vocab_size, count))
    return found


def _heads(seeds: torch.Tensor, vocab_size: int, count: int) -> torch.Tensor:
    """The same entries in their order: seeds int64 [N] -> int64 [N, count]."""
    heads = seeds.new_empty((seeds.shape[0], count))
    generator = torch.Generator()
    for row, seed in enumerate(seeds.tolist()):
        generator.manual_seed(seed & SEED_MASK)
        heads[row] = torch.randperm(vocab_size, generator=generator)[:count].to(seeds.device)
    return heads


def generator_words_ref(seeds: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The 32-bit number indices[i] of the generator that seeds[i] starts: int64 [N] twice -> int64 [N], below 2^32."""
    words = text_scores.generator_words_ref(seeds.cpu().numpy(), indices.cpu().numpy())
    return torch.from_numpy(words).to(indices.device)
