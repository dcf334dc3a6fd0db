"""What the model says of the next position: records that move along, rows that stand still."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from caw.decoding.state import DecodeState
from caw.record import Record

CPU = torch.device("cpu")


def started(batch: int, history: int = 2) -> DecodeState:
    state = DecodeState.empty(batch, 7, history, CPU)
    records = [record(batch, 100 * back) for back in range(history + 1)]
    state.start(torch.arange(batch), torch.randn(batch, 7), records)
    return state


def record(batch: int, mark: float) -> Record:
    """A record that can be told from others by `mark` + row."""
    rows = mark + torch.arange(batch).float()
    wide = rows[:, None].expand(-1, 100).contiguous()
    return Record(wide.clone(), wide.long(), wide.clone(), rows.clone())


def marks(state: DecodeState) -> list[list[float]]:
    return [state.current.logsumexp.tolist(), *(r.logsumexp.tolist() for r in state.history)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [[3, 0], [3, 4], [0, 2]])
def test_advancing_all(dtype: torch.dtype, rows: list[int]) -> None:
    state, logits = started(2), torch.randn(5, 7).to(dtype)
    assert marks(state) == [[0, 1], [100, 101], [200, 201]]
    state.advance_all(logits, torch.tensor(rows), record(2, 900))
    assert marks(state) == [[900, 901], [0, 1], [100, 101]]
    assert torch.equal(state.logits, logits[rows].float())


@pytest.mark.parametrize("places", [[], [1], [0, 2]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_advancing_some_leaves_the_others(places: list[int], dtype: torch.dtype) -> None:
    state, logits, rows = started(3), torch.randn(5, 7).to(dtype), torch.tensor([3, 0, 1])
    moved = torch.tensor([place in places for place in range(3)])
    expected = torch.where(moved[:, None], logits[rows].float(), state.logits)
    some = torch.tensor(places, dtype=torch.int64)
    state.advance_some(some, logits, rows[some], record(3, 900))
    assert torch.equal(state.logits, expected)
    shown = [[[900, 901, 902], [0, 1, 2], [100, 101, 102]], [[0, 1, 2], [100, 101, 102], [200, 201, 202]]]
    assert marks(state) == [[(new if move else old) for new, old, move in zip(*each, moved, strict=True)]
                            for each in zip(*shown, strict=True)]  # fmt: skip


def test_start_resets_only_its_rows() -> None:
    state = started(3)
    state.pending[:] = 9
    row: Any = torch.tensor([1])
    state.start(row, torch.zeros(1, 7), [record(1, 50), record(1, 60), record(1, 70)])
    assert state.pending.tolist() == [9, -1, 9]
    assert marks(state) == [[0, 50, 2], [100, 60, 102], [200, 70, 202]]


def test_keep_takes_every_part_along() -> None:
    state = started(3)
    state.pending[2], state.pending_strength[2], state.pending_capacity[2] = 8, 0.5, 0.25
    state.keep(torch.tensor([2, 0]))
    assert state.batch == 2
    assert marks(state) == [[2, 0], [102, 100], [202, 200]]
    assert (state.pending.tolist(), state.pending_strength[0], state.pending_capacity[0]) == ([8, -1], 0.5, 0.25)
    for value in vars(state).values():
        assert not isinstance(value, torch.Tensor) or value.shape[0] == 2
