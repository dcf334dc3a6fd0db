"""Prefill: the distributions before the first new token, for any lengths and groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoding.architectures import prompt

from caw.decoding import prefill as prefill_module
from caw.decoding.attention import caw_attention
from caw.decoding.kv_cache import SiblingCache
from caw.decoding.prefill import prefill
from caw.record import Record
from caw.testing import assert_close

LENGTHS = (11, 1, 7, 2, 3, 11)


@torch.inference_mode()
def run_prefill(model: Any, texts: list[list[int]], history: int, rows: Any = None) -> tuple[Any, Any, SiblingCache]:
    cache = SiblingCache(model.config.num_hidden_layers, len(texts), 16, 1, torch.device("cpu"))
    with caw_attention(model):
        logits, records = prefill(model, cache, rows or range(len(texts)), texts, history)
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
    monkeypatch.setattr(prefill_module, "MAX_ROWS", rows)
    monkeypatch.setattr(prefill_module, "MAX_TOKENS", tokens)
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
