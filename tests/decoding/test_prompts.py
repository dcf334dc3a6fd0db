"""Prompts: what is said of single ones, as data, and settings of their own."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from decoding.architectures import POSITIONS, VOCAB, prompt, tokenizer
from generating import PROMPTS, generate

import caw
from caw.decoding.prompts import PromptWarning, accept_prompts
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


TOO_LONG, NEARLY = prompt(POSITIONS), prompt(POSITIONS - 2)
MIXED: list[Any] = [PROMPTS[0], [], [VOCAB], TOO_LONG, NEARLY, "\ud800", None]


def accepted_of(model: Any, prompts: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return accept_prompts(tokenizer(), prompts, ModelFacts.of(model), RowSettings(max_new_tokens=5))


def test_what_is_said_of_single_prompts_is_data(llama: Any) -> None:
    """Neither a warning nor an error: whoever gave the prompts knows what to call them."""
    accepted = accepted_of(llama, MIXED)
    assert accepted.indices == [0, 4] and accepted.ids == [PROMPTS[0], NEARLY]
    refused = [(remark.index, remark.error) for remark in accepted.refused]
    assert refused == [(1, ValueError), (2, ValueError), (3, ValueError), (5, ValueError), (6, TypeError)]
    [short] = accepted.shortened
    assert (short.index, short.error) == (4, None)
    assert short.of("line 7").startswith(f"line 7 has {POSITIONS - 2} tokens and the model {POSITIONS} positions")
    assert str(accepted.refused[0]) == "prompt 1 must have at least one token, got none; leave it out or add some text"
    assert accepted.refused[0].of("it").startswith("it must have at least one token")


def test_a_call_says_it_with_numbers(llama: Any) -> None:
    with pytest.warns(
        PromptWarning, match="5 of 7 prompts are left out, the rest goes on; the first: prompt 1"
    ) as told:
        accepted_of(llama, MIXED).tell()
    assert str(told[0].message).startswith(f"prompt 4 has {POSITIONS - 2} tokens")
    for prompts, error in (([[]], ValueError), ([None, []], TypeError)):
        with pytest.raises(error, match=r"^prompt 0 must"):
            accepted_of(llama, prompts).tell()


def test_a_refused_prompt_is_a_result_with_its_reason(llama: Any) -> None:
    """Also where all are refused, so that a shard of a large run never stops at one."""
    for prompts in (MIXED, [[], None]):
        accepted = accepted_of(llama, prompts)
        results = list(stream_results(llama, tokenizer(), accepted, None, None, Settings(max_new_tokens=5)))
        assert sorted(result.index for result in results) == list(range(len(prompts)))
        for result, remark in zip(results, accepted.refused, strict=False):
            assert (result.index, result.finish_reason, result.tokens) == (remark.index, "error", [])
            assert (result.error, result.reason) == (str(remark), remark.of("the prompt"))


@pytest.mark.parametrize("entrance", [caw.generate, caw.iter_generate])
@pytest.mark.parametrize("prompts", [[PROMPTS[0], []], [[3] * (POSITIONS - 2)]], ids=["left out", "cut"])
def test_warnings_point_at_the_call(llama: Any, entrance: Any, prompts: list[list[int]]) -> None:
    """Those of `caw.generate` named a line of this library."""
    with pytest.warns(PromptWarning) as told:
        entrance(llama, tokenizer(), prompts, max_new_tokens=5)
    assert [warning.filename for warning in told] == [__file__]
