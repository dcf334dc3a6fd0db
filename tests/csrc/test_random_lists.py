"""Lists of torch's CPU generator, computed by ourselves, equal torch's own bit for bit."""

from __future__ import annotations

import pytest
import torch
from caw.triton_kernels.permutation_ref import permutation_green_ref, permutation_head_ref

from caw import ops

SIZES = [1, 2, 8, 1000, 32_000, 50_257, 49_152, 128_256, 151_936]
KEY = 15_485_863


def wrapped(x: int) -> int:
    """x modulo 2^64 as int64, the way products of token ids wrap in torch."""
    x &= 2**64 - 1
    return x - (x >> 63 << 64)


SEEDS = [0, 1, 42 * KEY, KEY * 31_999, -1, -KEY, 2**31, 2**32 - 1, 2**32, 2**63 - 1, -(2**63),
         wrapped(KEY * 1_000_003 * 1_000_003), wrapped(KEY * 999_999 * 999_983) % (2**64 - 1) % 2**63]  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
def test_heads_equal_randperm(size: int) -> None:
    seeds = torch.tensor(SEEDS)
    for count in {0, 1, size // 4, size // 2, size}:
        if count > 40_000:
            seeds = seeds[:3]
        heads = ops.permutation_head(seeds, size, count)
        for row, seed in enumerate(seeds.tolist()):
            generator = torch.Generator().manual_seed(seed & 0xFFFFFFFF)
            assert torch.equal(heads[row], torch.randperm(size, generator=generator)[:count])


@pytest.mark.parametrize("size", [1, 31, 32, 33, 1000, 50_257])
def test_sets_hold_the_heads(size: int) -> None:
    seeds = torch.tensor(SEEDS)
    for count in (0, size // 3, size):
        got = ops.permutation_green(seeds, size, count)
        assert torch.equal(got, permutation_green_ref(seeds, size, count))
        assert torch.equal(ops.permutation_head(seeds, size, count), permutation_head_ref(seeds, size, count))


def test_only_the_low_half_of_a_seed_counts() -> None:
    a = ops.permutation_head(torch.tensor([5, 5 + 2**32, 5 - 2**40]), 1000, 250)
    assert torch.equal(a[0], a[1]) and torch.equal(a[0], a[2])


def test_golden_list_of_transformers() -> None:
    """hashing_key 15485863, previous token 42, vocabulary 50257 (transformers 5, lefthash)."""
    head = ops.permutation_head(torch.tensor([KEY * 42]), 50_257, 8)
    assert head[0].tolist() == [2168, 39074, 49271, 46265, 3493, 18226, 30799, 9563]


def test_a_list_does_not_depend_on_those_before_it() -> None:
    """Scratch is reused between seeds: whatever the first seeds moved must be back in place."""
    seeds = torch.randint(0, 2**31, (40,))
    many = ops.permutation_head(seeds, 777, 333)
    for row, seed in enumerate(seeds):
        assert torch.equal(ops.permutation_head(seed[None], 777, 333)[0], many[row])


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"count must be in \[0, vocab_size\], got 9"):
        ops.permutation_head(torch.tensor([1]), 8, 9)
    with pytest.raises(RuntimeError, match=r"seeds must have shape \[N\], got \[1, 1\]"):
        ops.permutation_green(torch.tensor([[1]]), 8, 2)
    with pytest.raises(RuntimeError, match=r"vocab_size must be in \[1, 2\*\*31\), got 0"):
        ops.permutation_green(torch.tensor([1]), 0, 0)
    assert ops.permutation_green(torch.empty(0, dtype=torch.int64), 100, 5).shape == (0, 4)
