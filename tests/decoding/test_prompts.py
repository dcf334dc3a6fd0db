"""Prompts with settings of their own, from ids to texts."""

from __future__ import annotations

from typing import Any

import pytest
from decoding.architectures import tokenizer
from generating import PROMPTS, generate

import caw
from caw.decoding.prompts import accept_prompts
from caw.decoding.row_settings import RowSettings
from caw.entrance import stream_results
from caw.models.facts import ModelFacts
from caw.settings import Settings


def test_prompts_with_settings_of_their_own(llama: Any) -> None:
    """Each text is that of a call with these settings; a refused prompt keeps its place."""
    watermark = caw.EXP(key=3)
    calls: list[dict[str, Any]] = [
        {"max_new_tokens": 12}, {"max_new_tokens": 7, "do_sample": True, "temperature": 0.7, "seed": 4},
        {"max_new_tokens": 9, "min_new_tokens": 9},
    ]  # fmt: skip
    expected = [
        generate(llama, [ids], watermark=watermark, **call).texts[0]
        for ids, call in zip(PROMPTS, calls, strict=True)
    ]  # fmt: skip
    rows = [RowSettings(**call) for call in calls]
    settings = Settings(chat=False, return_trace=False)
    facts = ModelFacts.of(llama, tokenizer())
    accepted = accept_prompts(tokenizer(), [PROMPTS[0], [], *PROMPTS[1:]], facts, [rows[0], rows[0], *rows[1:]])
    results = list(stream_results(llama, tokenizer(), accepted, watermark, None, settings))
    found = [result.text for result in sorted(results, key=lambda result: result.index)]
    assert found == [expected[0], "", *expected[1:]]


def test_a_key_that_the_watermark_cannot_have_is_refused_before_the_first_result(llama: Any) -> None:
    accepted = accept_prompts(tokenizer(), PROMPTS[:1], ModelFacts.of(llama), RowSettings(key=2**64))
    with pytest.raises(ValueError, match=r"key must be in \[0, 2\*\*64\)"):
        stream_results(llama, tokenizer(), accepted, caw.KGW(key=1), None, Settings())


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([RowSettings()], ValueError, "rows must hold settings for each of 3 prompts, got 1; give one for each"),
        ({"seed": 1}, TypeError, r"rows must be RowSettings or a list of them, got dict; use RowSettings\(\)"),
        ([RowSettings(), None, RowSettings()], TypeError, "rows must be RowSettings or a list of them, got list"),
    ],
)
def test_settings_that_do_not_fit_the_prompts(llama: Any, rows: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        accept_prompts(tokenizer(), PROMPTS, ModelFacts.of(llama), rows)
