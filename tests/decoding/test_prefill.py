"""Prefill: the distributions before the first new token, for any lengths and groups."""

from typing import Any

import pytest
import torch
from decoding.architectures import prompt
from decoding.running import run
from pairwise import pairwise

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


@pytest.mark.parametrize("history", [0, 1, 2])
def test_distributions_of_the_last_positions(model: Any, history: int) -> None:
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


WAYS: dict[str, dict[str, int]] = {
    "one row": {"MAX_ROWS": 1}, "four rows": {"MAX_ROWS": 4}, "few tokens": {"MAX_TOKENS": 22},
    "single tokens": {"MAX_TOKENS": 1}, "chunks of 1": {"CHUNK": 1}, "chunks of 3": {"CHUNK": 3},
    "shared": {"shared": 9}, "shared, chunks of 4": {"shared": 9, "CHUNK": 4},
}  # fmt: skip


@pytest.mark.parametrize("way, history", pairwise(WAYS, [0, 2]))
def test_how_prompts_are_read_changes_nothing(
    model: Any, way: str, history: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits, records, lengths, keys and values of prompts in groups, in chunks and behind a beginning that they share;
    windows, caps and sinks too; wanted positions lie in several chunks."""
    limits = dict(WAYS[way])
    shared = limits.pop("shared", 0)
    # behind a shared beginning each prompt has the positions that a history reads
    lengths = [max(length, 1 + history) for length in LENGTHS] if shared else LENGTHS
    texts = [prompt(shared, 50) + prompt(length, i) for i, length in enumerate(lengths)]
    expected, others, whole = run_prefill(model, texts, history, capacity=24)
    for name, value in limits.items():
        monkeypatch.setattr(reading, name, value)
    logits, records, cache = run_prefill(model, texts, history, shared, capacity=24)
    assert_close(logits, expected, "forward")
    for a, b in zip(records, others, strict=True):
        assert_close(a.values, b.values, "forward")
    assert torch.equal(cache.lengths, whole.lengths)
    for row, length in enumerate(cache.lengths.tolist()):
        assert_close(cache.store[:, :, row, :, :length], whole.store[:, :, row, :, :length], "forward")


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
    read, beginning, inner = [], prompt(40, 9), reading.chunk_logits
    monkeypatch.setattr(reading, "chunk_logits", lambda *given: read.append(len(given[3])) or inner(*given))
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
        held = cache.store[:, :, :, :, : len(texts[0])]
        assert torch.equal(held[:, :, 2], held[:, :, 0]) and torch.equal(held[:, :, 4], held[:, :, 0])
