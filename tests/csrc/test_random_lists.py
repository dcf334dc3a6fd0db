"""Lists of torch's CPU generator, computed by ourselves, equal torch's own bit for bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from caw import ops
from caw.ops_ref.permutation_ref import generator_words_ref, permutation_contains_ref, permutation_green_ref

SIZES = [1, 2, 8, 1000, 50_257, 151_936]
KEY = 15_485_863


def wrapped(x: int) -> int:
    """x modulo 2^64 as int64, the way products of token ids wrap in torch."""
    x &= 2**64 - 1
    return x - (x >> 63 << 64)


SEEDS = [0, 1, 42 * KEY, KEY * 31_999, -1, -KEY, 2**31, 2**32 - 1, 2**32, 2**63 - 1, -(2**63),
         wrapped(KEY * 1_000_003 * 1_000_003), wrapped(KEY * 999_999 * 999_983) % (2**64 - 1) % 2**63]  # fmt: skip


def in_sets(sets: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Membership of tokens [N, M] in the sets int32 [N, words] of permutation_green."""
    return (sets.gather(1, tokens >> 5) >> (tokens & 31) & 1).bool()


def list_of(seed: int, size: int, count: int) -> torch.Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed & 0xFFFFFFFF))[:count]


@pytest.mark.parametrize("size", sorted({*SIZES, 31, 32, 33}))
def test_sets_hold_what_randperm_begins_with(size: int) -> None:
    seeds = torch.tensor(SEEDS)
    for count in {0, 1, size // 4, size // 2, size}:
        if count > 40_000:
            seeds = seeds[:3]
        got = ops.permutation_green(seeds, size, count)
        members = in_sets(got, torch.arange(got.shape[1] * 32).expand(len(seeds), -1))
        for row, seed in enumerate(seeds.tolist()):
            assert torch.equal(members[row].nonzero()[:, 0], list_of(seed, size, count).sort().values)
        assert torch.equal(got, permutation_green_ref(seeds, size, count))
        wanted = seeds % 2 == 0
        some = ops.permutation_green(seeds, size, count, wanted)
        assert torch.equal(some, permutation_green_ref(seeds, size, count, wanted))
        assert torch.equal(some, got * wanted[:, None])


def test_golden_list_of_transformers() -> None:
    """hashing_key 15485863, previous token 42, vocabulary 50257 (transformers 5, lefthash): each joins in its turn."""
    joined, golden = set(), [2168, 39074, 49271, 46265, 3493, 18226, 30799, 9563]
    for count, token in enumerate(golden, 1):
        sets = ops.permutation_green(torch.tensor([KEY * 42]), 50_257, count)
        joined |= {token}
        assert set(in_sets(sets, torch.arange(50_257)[None])[0].nonzero()[:, 0].tolist()) == joined


def test_a_list_does_not_depend_on_those_before_it() -> None:
    """Scratch is reused between seeds: whatever the first seeds moved must be back in place."""
    seeds = torch.randint(0, 2**31, (40,))
    many = ops.permutation_green(seeds, 777, 333)
    for row, seed in enumerate(seeds):
        assert torch.equal(ops.permutation_green(seed[None], 777, 333)[0], many[row])


@pytest.mark.parametrize("size", SIZES)
def test_every_token_is_followed_to_its_place(size: int) -> None:
    """Few tokens of a seed are followed through the draws, many are looked up in its list; both agree with the list."""
    seeds = torch.tensor(SEEDS[:5])
    for count in sorted({0, 1, size // 4, size - 1, size}):
        sets = ops.permutation_green(seeds, size, count)
        for asked in (1, 7, 33):
            tokens = torch.randint(0, size, (len(seeds), asked))
            got = ops.permutation_contains(seeds.repeat_interleave(asked), tokens.flatten(), size, count)
            assert torch.equal(got.view(-1, asked), in_sets(sets, tokens))


@given(
    size=st.integers(1, 3000),
    share=st.floats(0, 1),
    seeds=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3),
    pairs=st.integers(1, 80),
    kind=st.integers(0, 2**31),
)
def test_members_of_any_list(size: int, share: float, seeds: list[int], pairs: int, kind: int) -> None:
    generator = torch.Generator().manual_seed(kind)
    rows = torch.randint(0, len(seeds), (pairs,), generator=generator)
    tokens = torch.randint(-2, size + 2, (pairs,), generator=generator)
    asked = torch.tensor(seeds)[rows]
    count = int(share * size)
    expected = permutation_contains_ref(asked, tokens, size, count)
    assert torch.equal(ops.permutation_contains(asked, tokens, size, count), expected)


def test_words_are_those_of_the_generator() -> None:
    seeds = torch.tensor(SEEDS).repeat(6)
    indices = torch.randint(0, 5000, seeds.shape)
    indices[:4] = torch.tensor([0, 623, 624, 1247])
    got = ops.generator_words(seeds, indices)
    assert torch.equal(got, generator_words_ref(seeds, indices))
    for seed, index, word in zip(seeds.tolist(), indices.tolist(), got.tolist(), strict=True):
        generator = torch.Generator().manual_seed(seed & 0xFFFFFFFF)
        assert torch.rand(5000, generator=generator)[index].item() == (word & 0xFFFFFF) / 2**24
