"""The reference of commit_kv: the chosen candidate and nothing else moves."""

from __future__ import annotations

import torch

from caw.triton_kernels.commit_kv_ref import commit_kv_ref

LAYERS, BATCH, HEADS, SIZE, SLOTS, DIM = 3, 4, 2, 7, 5, 3


def test_the_chosen_candidate_is_appended() -> None:
    store = torch.randn(LAYERS, 2, BATCH, HEADS, SIZE, DIM)
    scratch = torch.randn(LAYERS, 2, BATCH, SLOTS, HEADS, DIM)
    choice, before = torch.tensor([4, 0, 2, 1]), [0, 6, 3, 2]
    lengths, active = torch.tensor(before), torch.tensor([True, True, True, False])
    old = store.clone()
    commit_kv_ref(store, scratch, choice, lengths, active)
    assert lengths.tolist() == [1, 7, 4, 2]
    for b in range(BATCH):
        for place in range(SIZE):
            if place != before[b]:
                assert torch.equal(store[:, :, b, :, place], old[:, :, b, :, place])
            elif active[b]:
                assert torch.equal(store[:, :, b, :, place], scratch[:, :, b, choice[b]])


def test_a_full_row_at_rest_is_left_in_bounds() -> None:
    """Its last place may be overwritten, which nobody reads again; other rows are not touched."""
    store = torch.randn(LAYERS, 2, 2, HEADS, SIZE, DIM)
    scratch = torch.randn(LAYERS, 2, 2, SLOTS, HEADS, DIM)
    old, lengths = store.clone(), torch.tensor([SIZE, 1])
    commit_kv_ref(store, scratch, torch.tensor([1, 2]), lengths, torch.tensor([False, True]))
    assert lengths.tolist() == [SIZE, 2]
    assert torch.equal(store[:, :, 0, :, : SIZE - 1], old[:, :, 0, :, : SIZE - 1])
    assert torch.equal(store[:, :, 1, :, 1], scratch[:, :, 1, 2])


def test_a_view_of_a_larger_store() -> None:
    """The batch baseline commits to one copy at a time."""
    store = torch.zeros(LAYERS, 2, 6, HEADS, SIZE, DIM)
    scratch = torch.randn(LAYERS, 2, 2, 1, HEADS, DIM)
    lengths = torch.tensor([2, 0])
    commit_kv_ref(store[:, :, 2:4], scratch, torch.zeros(2, dtype=torch.int64), lengths, torch.ones(2).bool())
    assert torch.equal(store[:, :, 2, :, 2], scratch[:, :, 0, 0])
    assert torch.equal(store[:, :, 3, :, 0], scratch[:, :, 1, 0])
    assert not store[:, :, [0, 1, 4, 5]].any()
