"""The record of a distribution: padding, empty positions, writing and choosing rows."""

from __future__ import annotations

import torch

from caw.record import RECORD_SIZE, Record


def fields(record: Record) -> list[torch.Tensor]:
    return [record.values, record.ids, record.probs, record.logsumexp]


def test_small_vocabularies_are_padded() -> None:
    record = Record.from_logits(torch.tensor([[0.0, 2.0, 2.0]]))
    assert record.ids.shape == (1, RECORD_SIZE)
    assert record.ids[0, :4].tolist() == [1, 2, 0, -1]
    assert bool((record.ids[0, 3:] == -1).all()) and bool((record.values[0, 3:] == -torch.inf).all())
    assert float(record.probs[0, 3:].sum()) == 0.0


def test_empty_records_have_no_probability() -> None:
    record = Record.empty(2, torch.device("cpu"), k=5)
    assert [tuple(x.shape) for x in fields(record)] == [(2, 5), (2, 5), (2, 5), (2,)]
    assert float(record.probs.sum()) == 0.0 and bool((record.ids == -1).all())


def test_write_and_where_move_whole_rows() -> None:
    first, second = Record.from_logits(torch.randn(4, 150)), Record.from_logits(torch.randn(4, 150))
    mask = torch.tensor([False, True, True, False])
    chosen = first.where(mask, second)
    for got, a, b in zip(fields(chosen), fields(first), fields(second), strict=True):
        assert torch.equal(got[mask], b[mask]) and torch.equal(got[~mask], a[~mask])
    first.write(torch.tensor([2, 1]), Record(*(x[[2, 1]] for x in fields(second))))
    for got, want in zip(fields(first), fields(chosen), strict=True):
        assert torch.equal(got, want)
