"""What is known of texts between two tokens: contexts, repeats, full rooms, rows that stand still."""

from __future__ import annotations

import pytest
import torch

from caw.decoding.request import Request
from caw.decoding.row_settings import RowSettings
from caw.decoding.texts import Texts

CPU = torch.device("cpu")


def started(batch: int, window: int, room: int) -> Texts:
    texts = Texts.empty(batch, window, room, CPU)
    begin(texts, *range(batch))
    return texts


def begin(texts: Texts, *rows: int) -> None:
    requests = [Request([row + 1], texts.room, RowSettings(max_new_tokens=texts.room)) for row in rows]
    texts.start(torch.tensor(rows), requests, [()] * len(rows), [None] * len(rows))


def emit(texts: Texts, *columns: list[int]) -> None:
    for tokens in columns:
        texts.emit(torch.tensor(tokens), torch.ones(len(tokens), dtype=torch.bool))


def test_contexts_are_the_last_generated_tokens() -> None:
    texts = started(2, window=3, room=5)
    assert texts.contexts().tolist() == [[-1, -1, -1]] * 2
    emit(texts, [4, 5])
    assert texts.contexts().tolist() == [[-1, -1, 4], [-1, -1, 5]]
    emit(texts, [6, 7], [8, 9], [1, 2])
    assert texts.contexts().tolist() == [[6, 8, 1], [7, 9, 2]]
    assert started(2, window=0, room=5).contexts().shape == (2, 0)


def test_rows_that_emit_nothing_stand_still() -> None:
    texts = started(2, window=1, room=3)
    texts.emit(torch.tensor([4, 5]), torch.tensor([True, False]))
    assert texts.counts.tolist() == [1, 0]
    assert texts.contexts().tolist() == [[4], [-1]]


def test_tokens_put_are_tokens_emitted() -> None:
    texts, other = started(2, window=2, room=5), started(2, window=2, room=5)
    emit(texts, [4, 5], [6, 7])
    for row, tokens in enumerate([[4, 6], [5, 7]]):
        other.put(row, tokens[:1])
        other.put(row, tokens[1:])
    assert torch.equal(texts.padded_tokens, other.padded_tokens) and torch.equal(texts.counts, other.counts)


def test_a_full_row_keeps_its_tokens() -> None:
    texts = started(2, window=1, room=2)
    emit(texts, [4, 5], [6, 7])
    texts.emit(torch.tensor([8, 9]), torch.tensor([False, False]))
    assert texts.padded_tokens.tolist() == [[-1, 4, 6], [-1, 5, 7]]


def test_context_repeats_by_definition() -> None:
    torch.manual_seed(3)
    for window in (1, 2, 4):
        texts, made = started(3, window, room=40), [[], [], []]
        for _ in range(40):
            contexts = texts.contexts()
            padded = [[-1] * window + t for t in made]
            expected = [
                any(p[i : i + window] == p[len(t) :] for i in range(len(t))) for p, t in zip(padded, made, strict=True)
            ]
            assert texts.context_repeats(contexts).tolist() == expected
            new = torch.randint(0, 3, (3,)).tolist()
            emit(texts, new)
            for t, token in zip(made, new, strict=True):
                t.append(token)


def test_start_resets_only_its_rows() -> None:
    texts = started(3, window=2, room=4)
    emit(texts, [3, 4, 5], [6, 7, 8])
    texts.refused[:] = 9.0
    begin(texts, 1)
    assert texts.counts.tolist() == [2, 0, 2]
    assert texts.contexts().tolist() == [[3, 6], [-1, -1], [5, 8]]
    assert texts.refused.tolist() == [9, 0, 9]
    assert texts.streams[1].tolist() == list(Request([2], 4).stream)


def test_keep_takes_every_part_along() -> None:
    texts = started(3, window=1, room=4)
    emit(texts, [3, 4, 5])
    texts.keep(torch.tensor([2, 0]))
    assert texts.batch == 2
    assert texts.contexts().tolist() == [[5], [3]]
    assert texts.streams.tolist() == [list(Request([prompt], 4).stream) for prompt in (3, 1)]


def test_a_taken_row_is_a_copy() -> None:
    texts = started(3, window=1, room=4)
    emit(texts, [3, 4, 5])
    taken = texts.take(torch.tensor([2, 0]))
    emit(taken, [7, 8])
    assert taken.padded_tokens.tolist() == [[-1, 5, 7, -1, -1], [-1, 3, 8, -1, -1]]
    assert texts.contexts().tolist() == [[3], [4], [5]]


@pytest.mark.parametrize("room", [5, 9])
def test_growing_keeps_the_tokens(room: int) -> None:
    texts = started(2, window=1, room=2)
    emit(texts, [4, 5], [6, 7])
    texts.grow(room)
    assert texts.room == room
    emit(texts, [8, 9])
    assert texts.made[:, :4].tolist() == [[4, 6, 8, -1], [5, 7, 9, -1]]
