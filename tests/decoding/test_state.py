"""The state between two steps: contexts, repeats, tokens at the end of their room, rows that stand still."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from caw.decoding.state import DecodeState
from caw.record import Record

CPU = torch.device("cpu")


def started(batch: int, window: int, room: int, history: int = 2) -> DecodeState:
    state = DecodeState.empty(batch, 7, history, window, room, CPU)
    records = [record(batch, 100 * back) for back in range(history + 1)]
    state.start(torch.arange(batch), torch.randn(batch, 7), records, torch.zeros(batch, 2, dtype=torch.int64))
    return state


def record(batch: int, mark: float) -> Record:
    """A record that can be told from others by `mark` + row."""
    rows = mark + torch.arange(batch).float()
    wide = rows[:, None].expand(-1, 100).contiguous()
    return Record(wide.clone(), wide.long(), wide.clone(), rows.clone())


def emit(state: DecodeState, *columns: list[int]) -> None:
    for tokens in columns:
        state.emit(torch.tensor(tokens), torch.ones(len(tokens), dtype=torch.bool))


def test_contexts_are_the_last_generated_tokens() -> None:
    state = started(2, window=3, room=5)
    assert state.contexts().tolist() == [[-1, -1, -1]] * 2
    emit(state, [4, 5])
    assert state.contexts().tolist() == [[-1, -1, 4], [-1, -1, 5]]
    emit(state, [6, 7], [8, 9], [1, 2])
    assert state.contexts().tolist() == [[6, 8, 1], [7, 9, 2]]
    assert started(2, window=0, room=5).contexts().shape == (2, 0)


def test_rows_that_emit_nothing_stand_still() -> None:
    state = started(2, window=1, room=3)
    state.emit(torch.tensor([4, 5]), torch.tensor([True, False]))
    assert state.counts.tolist() == [1, 0]
    assert state.contexts().tolist() == [[4], [-1]]


def test_a_full_row_keeps_its_tokens() -> None:
    state = started(2, window=1, room=2)
    emit(state, [4, 5], [6, 7])
    state.emit(torch.tensor([8, 9]), torch.tensor([False, False]))
    assert state.padded_tokens.tolist() == [[-1, 4, 6], [-1, 5, 7]]


def test_context_repeats_by_definition() -> None:
    torch.manual_seed(3)
    for window in (1, 2, 4):
        state, texts = started(3, window, room=40), [[], [], []]
        for _ in range(40):
            contexts = state.contexts()
            padded = [[-1] * window + t for t in texts]
            expected = [
                any(p[i : i + window] == p[len(t) :] for i in range(len(t))) for p, t in zip(padded, texts, strict=True)
            ]
            assert state.context_repeats(contexts).tolist() == expected
            new = torch.randint(0, 3, (3,)).tolist()
            emit(state, new)
            for t, token in zip(texts, new, strict=True):
                t.append(token)


def marks(state: DecodeState) -> list[list[float]]:
    return [state.current.logsumexp.tolist(), *(r.logsumexp.tolist() for r in state.history)]


def test_advance_moves_records_along_where_asked() -> None:
    state = started(2, window=1, room=5)
    assert marks(state) == [[0, 1], [100, 101], [200, 201]]
    logits = torch.randn(2, 7)
    before = state.logits.clone()
    state.advance(torch.tensor([True, False]), logits, record(2, 900))
    assert marks(state) == [[900, 1], [0, 101], [100, 201]]
    assert torch.equal(state.logits, torch.stack([logits[0], before[1]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_advancing_all_is_advancing_each(dtype: torch.dtype) -> None:
    states, logits, rows = [started(2, window=1, room=5) for _ in range(2)], torch.randn(5, 7).to(dtype), [3, 0]
    states[0].advance(torch.tensor([True, True]), logits[rows], record(2, 900))
    states[1].advance_all(logits, torch.tensor(rows), record(2, 900))
    assert marks(states[1]) == [[900, 901], [0, 1], [100, 101]]
    each, every = ([state.logits, *state.records] for state in states)
    assert all(map(torch.equal, each, every))


@pytest.mark.parametrize("places", [[], [1], [0, 2]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_advancing_some_is_advancing_where_asked(places: list[int], dtype: torch.dtype) -> None:
    states, logits, rows = [started(3, window=1, room=5) for _ in range(2)], torch.randn(5, 7).to(dtype), [3, 0, 1]
    states[1].logits.copy_(states[0].logits)
    moved = torch.tensor([place in places for place in range(3)])
    states[0].advance(moved, logits[rows].float(), record(3, 900))
    some = torch.tensor(places, dtype=torch.int64)
    states[1].advance_some(some, logits, torch.tensor(rows)[some], record(3, 900))
    each, every = ([state.logits, *state.records] for state in states)
    assert all(map(torch.equal, each, every))


def test_start_resets_only_its_rows() -> None:
    state = started(3, window=2, room=4)
    emit(state, [3, 4, 5], [6, 7, 8])
    state.pending[:] = 9
    row: Any = torch.tensor([1])
    state.start(row, torch.zeros(1, 7), [record(1, 50), record(1, 60), record(1, 70)], torch.tensor([[5, 6]]))
    assert state.counts.tolist() == [2, 0, 2]
    assert state.contexts().tolist() == [[3, 6], [-1, -1], [5, 8]]
    assert state.pending.tolist() == [9, -1, 9]
    assert marks(state) == [[0, 50, 2], [100, 60, 102], [200, 70, 202]]
    assert state.streams[1].tolist() == [5, 6]


def test_keep_takes_every_part_along() -> None:
    state = started(3, window=1, room=4)
    emit(state, [3, 4, 5])
    state.pending[2], state.pending_strength[2], state.pending_capacity[2] = 8, 0.5, 0.25
    state.keep(torch.tensor([2, 0]))
    assert state.batch == 2
    assert state.contexts().tolist() == [[5], [3]]
    assert marks(state) == [[2, 0], [102, 100], [202, 200]]
    assert (state.pending.tolist(), state.pending_strength[0], state.pending_capacity[0]) == ([8, -1], 0.5, 0.25)
    for value in vars(state).values():
        assert not isinstance(value, torch.Tensor) or value.shape[0] == 2
