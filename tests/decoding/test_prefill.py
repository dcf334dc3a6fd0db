"""Prefill: the distributions before the first new token, for any lengths and groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoding.architectures import prompt
from decoding.running import run

from caw.decoding import reading
from caw.decoding.forward.attention import caw_attention
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.prefill import prefill, shared_beginning
from caw.record import Record
from caw.testing import assert_close

LENGTHS = (11, 1, 7, 2, 3, 11)


@torch.inference_mode()
def run_prefill(
    model: Any, texts: list[list[int]], history: int, shared: int = 0, capacity: int = 16
) -> tuple[Any, Any, SiblingCache]:
    cache = SiblingCache(model.config.num_hidden_layers, len(texts), capacity, 1, torch.device("cpu"))
    with caw_attention(model):
        logits, records = prefill(model, cache, range(len(texts)), texts, history, shared)
    return logits, records, cache


def check_distributions(model: Any, history: int) -> None:
    texts = [prompt(length, i) for i, length in enumerate(LENGTHS)]
    logits, records, cache = run_prefill(model, texts, history)
    assert cache.lengths.tolist() == list(LENGTHS)
    assert len(records) == history + 1
    for b, ids in enumerate(texts):
        whole = model(torch.tensor([ids]), use_cache=False).logits[0]
        assert_close(logits[b], whole[-1], "forward")
        for back, record in enumerate(records):
            if back >= len(ids):
                assert not record.probs[b].any(), "a position before the first distribution"
                assert (record.ids[b] == -1).all()
                continue
            expected = Record.from_logits(whole[-1 - back : len(ids) - back])
            assert_close(record.probs[b], expected.probs[0], "capacity")
            assert_close(record.values[b], expected.values[0], "forward")
            assert_close(record.logsumexp[b], expected.logsumexp[0], "forward")


@pytest.mark.parametrize("history", [0, 1, 2])
def test_distributions_of_the_last_positions(llama: Any, history: int) -> None:
    check_distributions(llama, history)


def test_distributions_on_every_architecture(model: Any) -> None:
    check_distributions(model, 2)


@pytest.mark.parametrize(("rows", "tokens"), [(1, 8192), (4, 8192), (8, 8), (8, 22), (8, 1)])
def test_groups_change_nothing(llama: Any, rows: int, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows or few tokens a forward."""
    texts = [prompt(length, i) for i, length in enumerate(LENGTHS)]
    expected, records, _ = run_prefill(llama, texts, 1)
    monkeypatch.setattr(reading, "MAX_ROWS", rows)
    monkeypatch.setattr(reading, "MAX_TOKENS", tokens)
    logits, others, _ = run_prefill(llama, texts, 1)
    assert_close(logits, expected, "forward")
    for a, b in zip(others, records, strict=True):
        assert_close(a.values, b.values, "forward")


def test_rows_land_where_they_were_sent(llama: Any) -> None:
    """A refill fills some rows and leaves the others alone."""
    texts = [prompt(5, 1), prompt(3, 2), prompt(4, 3)]
    _, _, cache = run_prefill(llama, texts, 0)
    before = cache.store.clone()
    with torch.inference_mode(), caw_attention(llama):
        prefill(llama, cache, [2, 0], [prompt(2, 8), prompt(6, 9)], 0)
    assert cache.lengths.tolist() == [6, 3, 2]
    assert torch.equal(cache.store[:, :, 1], before[:, :, 1])
    _, _, alone = run_prefill(llama, [prompt(6, 9)], 0)
    assert_close(cache.store[:, :, 0, :, :6], alone.store[:, :, 0, :, :6], "forward")


# Chunks and shared beginnings --------------------------------------------------------------------------------------


def same_prefill(actual: Any, expected: Any) -> None:
    """Logits, records, lengths and the keys and values of every prompt."""
    (logits, records, cache), (other_logits, other_records, other) = actual, expected
    assert_close(logits, other_logits, "forward")
    for a, b in zip(records, other_records, strict=True):
        assert_close(a.values, b.values, "forward")
    assert torch.equal(cache.lengths, other.lengths)
    for row, length in enumerate(cache.lengths.tolist()):
        assert_close(cache.store[:, :, row, :, :length], other.store[:, :, row, :, :length], "forward")


@pytest.mark.parametrize("history, chunk", [(0, 1), (2, 3)])
def test_chunks_change_nothing(model: Any, history: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, caps and sinks too; wanted positions lie in several chunks."""
    texts = [prompt(length, i) for i, length in enumerate(LENGTHS)]
    whole = run_prefill(model, texts, history)
    monkeypatch.setattr(reading, "CHUNK", chunk)
    same_prefill(run_prefill(model, texts, history), whole)


@pytest.mark.parametrize("history, chunk", [(0, 2048), (2, 4)])
def test_a_shared_beginning_changes_nothing(
    model: Any, history: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK", chunk)
    beginning = prompt(9, 50)
    texts = [beginning + prompt(length, i) for i, length in enumerate((3, 4, 7, 3))]
    same_prefill(run_prefill(model, texts, history, shared=9), run_prefill(model, texts, history))


def test_the_model_sees_a_shared_beginning_once(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when slots are refilled later."""
    seen: list[int] = []
    inner = reading.chunk_logits
    monkeypatch.setattr(reading, "chunk_logits", lambda *a: (seen.append(a[3].numel()), inner(*a))[1])
    beginning = prompt(40, 50)
    texts = [beginning + prompt(3, i) for i in range(5)]
    expected = [run(llama, [t], max_new_tokens=4).tokens[0] for t in texts]
    seen.clear()
    assert run(llama, texts, batch=2, max_new_tokens=4).tokens == expected
    assert sum(seen) == 40 + 5 * 3


def test_what_prompts_share() -> None:
    beginning = prompt(40, 50)
    assert shared_beginning([[*beginning, 1, 2], [*beginning, 3, 4], [*beginning, 1]], 0) == 40
    assert shared_beginning([beginning, beginning], 0) == 39, "the last position's distribution is wanted"
    assert shared_beginning([beginning, [*beginning, 5]], 2) == 37
    assert shared_beginning([beginning], 0) == 0
    assert shared_beginning([beginning, beginning[1:]], 0) == 0
    assert shared_beginning([[*beginning[:20], 3], [*beginning[:20], 4]], 0) == 0, "not worth a forward"
    assert shared_beginning([], 0) == 0


def test_equal_prompts_are_read_once(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows hold the same bits, behind a shared beginning too."""
    read, beginning = [], prompt(40, 9)
    original = reading.chunk_logits
    monkeypatch.setattr(
        reading, "chunk_logits", lambda model, cache, rows, ids, *rest: read.append(len(ids)) or original(
            model, cache, rows, ids, *rest),
    )  # fmt: skip
    for start, shared in (([], 0), (beginning, 37)):
        texts = [[*start, *prompt(length, seed)] for length, seed in ((5, 1), (7, 2), (5, 1), (3, 3), (5, 1), (7, 2))]
        read.clear()
        logits, records, cache = run_prefill(llama, texts, 2, shared, capacity=64)
        assert sum(read) == 3 + bool(shared) and cache.lengths.tolist() == [len(text) for text in texts]
        expected, theirs, _ = run_prefill(llama, [texts[0], texts[1], texts[3]], 2, shared, capacity=64)
        same = [0, 1, 0, 2, 0, 1]
        assert torch.equal(logits, expected[same])
        for mine, other in zip(records, theirs, strict=True):
            assert torch.equal(mine.values, other.values[same])
        for row in (2, 4):
            for one, other in zip(
                cache.copy_out(row, 0, len(texts[0])), cache.copy_out(0, 0, len(texts[0])), strict=True
            ):
                assert torch.equal(one, other)
