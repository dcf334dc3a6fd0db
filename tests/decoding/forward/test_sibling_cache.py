"""Where keys and values lie, for one copy of each prefix and for the batch baseline's several."""

from __future__ import annotations

import pytest
import torch

from caw.decoding.forward.sibling_cache import SiblingCache

LAYERS, HEADS, DIM, SIZE, SLOTS = 2, 2, 3, 9, 3


def filled(batch: int, lengths: list[int], copies: int = 1) -> SiblingCache:
    """A cache after prefill of `batch` rows: position t of layer l, row b holds 100 l + 10 b + t (values negated)."""
    cache = SiblingCache(LAYERS, batch, SIZE, SLOTS, torch.device("cpu"), copies)
    cache.begin_prefill(torch.arange(batch))
    for layer in range(LAYERS):
        rows = 100 * layer + 10 * torch.arange(batch)[:, None] + torch.arange(max(lengths))[None]
        key = rows[:, None, :, None].expand(batch, HEADS, max(lengths), DIM).float()
        given = cache.layers[layer].update(key, -key)
        assert given[0] is key, "transformers gets its own tensor back"
    cache.end_prefill(torch.tensor(lengths))
    return cache


def put_candidates(cache: SiblingCache, rows: int, count: int, slot: int = 0) -> torch.Tensor:
    """Candidate c of row b holds 1000 + 10 b + c."""
    cache.begin_forward(slot)
    values = 1000 + 10 * torch.arange(rows)[:, None] + slot + torch.arange(count)[None]
    key = values[:, None, :, None].expand(rows, HEADS, count, DIM).float()
    for layer in range(LAYERS):
        cache.layers[layer].update(key, -key)
    return values


@pytest.mark.parametrize("copies", [1, SLOTS])
def test_prefill_fills_every_copy(copies: int) -> None:
    cache = filled(2, [4, 2], copies)
    assert cache.store.shape == (LAYERS, 2, 2 * copies, HEADS, SIZE, DIM)
    assert cache.scratch.shape == (LAYERS, 2, 2 * copies, SLOTS if copies == 1 else 1, HEADS, DIM)
    for row in range(2 * copies):
        for layer in range(LAYERS):
            expected = 100 * layer + 10 * (row % 2) + torch.arange(4).float()
            assert torch.equal(cache.store[layer, 0, row, 1, :4, 2], expected)
            assert torch.equal(cache.store[layer, 1, row, 0, :4, 0], -expected)
    assert cache.lengths.tolist() == [4, 2]


def test_commit_appends_to_every_copy() -> None:
    """Copy-major rows: candidate c of sequence b was forwarded as row c * B + b."""
    cache = filled(2, [4, 2], copies=SLOTS)
    put_candidates(cache, 4, 1)  # two candidates of two sequences
    cache.commit(torch.tensor([1, 0]), torch.ones(2, dtype=torch.bool))
    assert cache.lengths.tolist() == [5, 3]
    for copy in range(SLOTS):
        assert cache.store[0, 0, copy * 2, 0, 4, 0] == 1000 + 10 * 2
        assert cache.store[0, 0, copy * 2 + 1, 0, 2, 0] == 1000 + 10 * 1


@pytest.mark.parametrize("copies", [1, SLOTS])
def test_keep_drops_rows_of_every_copy(copies: int) -> None:
    cache = filled(4, [4, 2, 3, 1], copies)
    cache.keep(torch.tensor([3, 1]))
    assert (cache.batch, cache.rows, cache.lengths.tolist()) == (2, 2 * copies, [1, 2])
    for copy in range(copies):
        assert cache.store[0, 0, copy * 2, 0, 0, 0] == 30
        assert cache.store[0, 0, copy * 2 + 1, 0, 1, 0] == 11
    cache.commit(torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.bool))
    assert cache.lengths.tolist() == [2, 3]


def test_keys_and_values_of_different_sizes_are_refused() -> None:
    cache = SiblingCache(1, 1, SIZE, 1, torch.device("cpu"))
    cache.begin_prefill(torch.tensor([0]))
    with pytest.raises(NotImplementedError, match="keys and values must have one shape"):
        cache.layers[0].update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 5))


def test_what_transformers_asks_of_a_cache() -> None:
    cache = filled(2, [4, 2])
    assert cache.get_seq_length() == 0
    assert cache.get_mask_sizes(5, 0) == (5, 0)
    assert cache.layers[0].get_max_length() == SIZE
    assert len(cache.layers) == LAYERS
