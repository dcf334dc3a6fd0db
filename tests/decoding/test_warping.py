"""Warpers as in transformers, each row with numbers of its own."""

from functools import partial
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from caw.decoding.request import Request
from caw.decoding.row_settings import RowLimits, RowSettings
from caw.decoding.texts import Texts
from caw.decoding.warping import make_warper

ROWS, VOCAB = 5, 53


def warp(logits: torch.Tensor, **settings: Any) -> torch.Tensor:
    return warp_rows(logits, [RowSettings(do_sample=True, **settings)] * len(logits))


def warp_rows(logits: torch.Tensor, rows: list[RowSettings]) -> torch.Tensor:
    limits = RowLimits.of(rows, ())
    texts = Texts.empty(len(rows), 0, 1, logits.device)
    requests = [Request([1], 1, row) for row in rows]
    texts.start(torch.arange(len(rows)), requests, [()] * len(rows), [None] * len(rows))
    warper = make_warper(limits)
    return logits if warper is None else warper(logits.clone(), texts)


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 1e-6])
@pytest.mark.parametrize("top_k", [0, 1, 7, VOCAB, VOCAB + 9])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_warpers_are_those_that_generate_would_use(
    temperature: float, top_k: int, top_p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same list in the same order as transformers builds for these settings; torch.sort is stable here."""
    monkeypatch.setattr(torch, "sort", partial(torch.sort, stable=True))
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, hidden_size=4, intermediate_size=4, num_hidden_layers=1,
                                         num_attention_heads=1))  # fmt: skip
    config = model.generation_config
    config.update(do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p)
    processors = model._get_logits_processor(config, input_ids_seq_length=1, device="cpu")
    logits = torch.randn(ROWS, VOCAB).round(decimals=1)
    logits[:, 10:20] = -torch.inf
    expected = processors(torch.zeros(ROWS, 1, dtype=torch.int64), logits.clone())
    assert torch.equal(warp(logits, temperature=temperature, top_k=top_k, top_p=top_p), expected)


def test_no_warper_where_nothing_would_change() -> None:
    assert make_warper(RowLimits.of([RowSettings(do_sample=True)], ())) is None
    assert make_warper(RowLimits.of([RowSettings(temperature=0.5, top_k=3, top_p=0.5)], ())) is None, "greedy"
