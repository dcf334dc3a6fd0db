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


def test_tokens_put_are_tokens_emitted() -> None:
    texts, other = started(2, window=2, room=5), started(2, window=2, room=5)
    emit(texts, [4, 5], [6, 7])
    for row, tokens in enumerate([[4, 6], [5, 7]]):
        other.put(row, tokens[:1])
        other.put(row, tokens[1:])
    assert torch.equal(texts.padded_tokens, other.padded_tokens) and torch.equal(texts.counts, other.counts)


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


@pytest.mark.parametrize("room", [5, 9])
def test_growing_keeps_the_tokens(room: int) -> None:
    texts = started(2, window=1, room=2)
    emit(texts, [4, 5], [6, 7])
    texts.grow(room)
    assert texts.room == room
    emit(texts, [8, 9])
    assert texts.made[:, :4].tolist() == [[4, 6, 8, -1], [5, 7, 9, -1]]
