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


def test_advance_moves_records_along_where_asked() -> None:
    state = started(2)
    assert marks(state) == [[0, 1], [100, 101], [200, 201]]
    logits = torch.randn(2, 7)
    before = state.logits.clone()
    state.advance(torch.tensor([True, False]), logits, record(2, 900))
    assert marks(state) == [[900, 1], [0, 101], [100, 201]]
    assert torch.equal(state.logits, torch.stack([logits[0], before[1]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [[3, 0], [3, 4], [0, 2]])
def test_advancing_all_is_advancing_each(dtype: torch.dtype, rows: list[int]) -> None:
    states, logits = [started(2) for _ in range(2)], torch.randn(5, 7).to(dtype)
    states[0].advance(torch.tensor([True, True]), logits[rows], record(2, 900))
    states[1].advance_all(logits, torch.tensor(rows), record(2, 900))
    assert marks(states[1]) == [[900, 901], [0, 1], [100, 101]]
    each, every = ([state.logits, *state.records] for state in states)
    assert all(map(torch.equal, each, every))


@pytest.mark.parametrize("places", [[], [1], [0, 2]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_advancing_some_is_advancing_where_asked(places: list[int], dtype: torch.dtype) -> None:
    states, logits, rows = [started(3) for _ in range(2)], torch.randn(5, 7).to(dtype), [3, 0, 1]
    states[1].logits.copy_(states[0].logits)
    moved = torch.tensor([place in places for place in range(3)])
    states[0].advance(moved, logits[rows].float(), record(3, 900))
    some = torch.tensor(places, dtype=torch.int64)
    states[1].advance_some(some, logits, torch.tensor(rows)[some], record(3, 900))
    each, every = ([state.logits, *state.records] for state in states)
    assert all(map(torch.equal, each, every))


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
