"""commit_kv, compiled, by the Triton kernel and by its reference: the chosen candidate and nothing else moves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from caw import ops
from caw.triton_kernels.commit_kv_ref import commit_kv_ref

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def inputs(layers: int, batch: int, heads: int, size: int, dim: int, slots: int, dtype: torch.dtype,
           lengths: list[int], active: list[bool]) -> list[torch.Tensor]:  # fmt: skip
    """Store, scratch, choice, lengths and who is active."""
    store = torch.randn(layers, 2, batch, heads, size, dim).to(dtype)
    scratch = torch.randn(layers, 2, batch, slots, heads, dim).to(dtype)
    return [store, scratch, torch.randint(0, slots, (batch,)), torch.tensor(lengths), torch.tensor(active)]


CASES = [
    (1, 1, 1, 1, 1, 1, torch.float32, [0], [True]),
    (2, 3, 2, 7, 80, 5, torch.bfloat16, [0, 3, 6], [True, False, True]),
    (1, 2, 33, 3, 64, 2, torch.float16, [2, 1], [True, True]),  # more than a block
    (3, 2, 1, 5, 13, 32, torch.float32, [5, 4], [False, True]),  # full, and at rest
    (3, 4, 2, 9, 5, 3, torch.bfloat16, [0, 8, 9, 3], [True, True, False, True]),
]


def check(op: Any, given: list[torch.Tensor], exact: bool = True) -> None:
    """By definition; exact: a full row at rest stays too, whose last place nobody reads again."""
    store, scratch, choice, lengths, active = given
    old, before = store.clone(), lengths.tolist()
    op(*given)
    assert lengths.tolist() == [n + int(a) for n, a in zip(before, active.tolist(), strict=True)]
    for b, place in enumerate(before):
        if active[b]:
            old[:, :, b, :, place] = scratch[:, :, b, choice[b]]
        readable = slice(None) if exact else slice(0, lengths[b] if place < store.shape[4] else place - 1)
        assert torch.equal(store[:, :, b, :, readable], old[:, :, b, :, readable])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_chosen_candidate_is_appended(kernel: Any, case: tuple[Any, ...]) -> None:
    check(lambda *given: kernel("commit_kv", *given), inputs(*case))
    check(commit_kv_ref, inputs(*case), exact=False)


def test_many_times_and_any_strides(kernel: Any) -> None:
    """The counter inside the lengths is zero again after each launch."""
    store, scratch, *rest = inputs(2, 2, 3, 6, 8, 3, torch.float32, [1, 3], [True, True])
    store = store.permute(0, 4, 2, 1, 3, 5).contiguous().permute(0, 3, 2, 4, 1, 5)
    scratch = torch.cat([scratch, scratch], dim=3)[:, :, :, 1:4]
    for _ in range(3):
        check(lambda *given: kernel("commit_kv", *given), [store, scratch, *rest])


def test_a_view_of_a_larger_store(kernel: Any) -> None:
    """The batch baseline commits to one copy at a time."""
    store, scratch, *_ = inputs(3, 6, 2, 7, 3, 1, torch.float32, [0] * 6, [True] * 6)
    rest = torch.zeros(2, dtype=torch.int64), torch.tensor([2, 0]), torch.ones(2).bool()
    others = store[:, :, [0, 1, 4, 5]].clone()
    check(lambda *given: kernel("commit_kv", *given), [store[:, :, 2:4], scratch[:, :, 2:4], *rest])
    assert torch.equal(store[:, :, [0, 1, 4, 5]], others)


def test_active_rows_have_room() -> None:
    store, *rest = inputs(1, 2, 1, 3, 8, 2, torch.float32, [3, 1], [True, True])
    before = store.clone()
    with pytest.raises(RuntimeError, match="lengths of active rows must be below S, got 3"):
        ops.commit_kv(store, *rest)
    assert torch.equal(store, before)
