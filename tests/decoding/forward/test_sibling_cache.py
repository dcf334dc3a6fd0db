"""Where keys and values lie, for one copy of each prefix and for the batch baseline's several."""

from __future__ import annotations

import pytest
import torch

from caw.decoding.forward.sibling_cache import SiblingCache

LAYERS, HEADS, DIM, SIZE, SLOTS = 2, 2, 3, 9, 3


def filled(batch: int, lengths: list[int]) -> SiblingCache:
    """A cache after prefill of `batch` rows: position t of layer l, row b holds 100 l + 10 b + t (values negated)."""
    cache = SiblingCache(LAYERS, batch, SIZE, SLOTS, torch.device("cpu"))
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


def test_prefill_fills_rows() -> None:
    cache = filled(2, [4, 2])
    assert cache.store.shape == (LAYERS, 2, 2, HEADS, SIZE, DIM)
    assert cache.scratch.shape == (LAYERS, 2, 2, SLOTS, HEADS, DIM)
    for row in range(2):
        for layer in range(LAYERS):
            expected = 100 * layer + 10 * row + torch.arange(4).float()
            assert torch.equal(cache.store[layer, 0, row, 1, :4, 2], expected)
            assert torch.equal(cache.store[layer, 1, row, 0, :4, 0], -expected)
    assert cache.lengths.tolist() == [4, 2]


def test_commit_appends_the_chosen_candidate() -> None:
    cache = filled(3, [4, 2, 1])
    put_candidates(cache, 3, 2)
    put_candidates(cache, 3, 1, slot=2)
    cache.commit(torch.tensor([2, 0, 1]), torch.tensor([True, True, False]))
    assert cache.lengths.tolist() == [5, 3, 1]
    assert cache.store[1, 0, 0, 0, 4, 0] == 1002
    assert cache.store[1, 1, 1, 1, 2, 2] == -1010


def test_keep_drops_rows() -> None:
    cache = filled(4, [4, 2, 3, 1])
    cache.keep(torch.tensor([3, 1]))
    assert (cache.batch, cache.lengths.tolist()) == (2, [1, 2])
    assert cache.store[0, 0, 0, 0, 0, 0] == 30 and cache.store[0, 0, 1, 0, 1, 0] == 11
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
