"""Prompts: what is said of single ones, as data, and settings of their own."""

import re
import warnings
from typing import Any
from unittest.mock import Mock

import pytest
from decoding.architectures import POSITIONS, VOCAB, prompt, tokenizer
from generating import PROMPTS, generate
from tiny import tiny_model, tiny_tokenizer

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


@pytest.mark.parametrize(("rows", "error", "message"), [
    ([RowSettings()], ValueError, "rows must hold settings for each of 3 prompts, got 1; give one for each"),
    ({"seed": 1}, TypeError, r"rows must be RowSettings or a list of them, got dict; use RowSettings\(\)"),
    ([RowSettings(), None, RowSettings()], TypeError, "rows must be RowSettings or a list of them, got list"),
])  # fmt: skip
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
    with pytest.warns(PromptWarning, match="5 of 7 prompts get no text, the rest goes on; the first: prompt 1") as told:
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


USER: dict[str, Any] = {"role": "user", "content": "why"}
TALKS: list[Any] = [
    [USER], [{"role": "system", "content": "be brief"}, USER],
    [USER, {"role": "assistant", "content": "so"}, {"role": "user", "content": [{"type": "text", "text": "and"}]}],
]  # fmt: skip


def chat(prompts: Any, **settings: Any) -> Any:
    reader = tiny_tokenizer()
    return caw.generate(
        tiny_model(len(reader)), reader, prompts, watermark=caw.KGW(key=1), max_new_tokens=6, progress=False,
        **{"chat": True, **settings},
    )  # fmt: skip


def test_conversations_are_what_their_template_writes() -> None:
    """A single one, several, and mixed with texts, which are one message of a user."""
    reader = tiny_tokenizer()
    texts = [
        "<user>why<assistant>",
        "<system>be brief<user>why<assistant>",
        "<user>why<assistant>so<user>and<assistant>",
    ]
    ids = [reader(text, add_special_tokens=False)["input_ids"] for text in texts]
    expected = chat(ids, chat=False).sequences
    assert chat(TALKS).sequences == expected
    assert chat(TALKS[1]).sequences == expected[1:2] and chat([TALKS[1]]).sequences == expected[1:2]
    assert chat(["why", TALKS[2]]).sequences == [expected[0], expected[2]]
    shown = Mock()
    assert chat(TALKS[2], streamer=shown).sequences == expected[2:] and shown.end.called
    found = caw.iter_generate(
        tiny_model(len(reader)), reader, TALKS[2], watermark=caw.KGW(key=1), max_new_tokens=6, chat=True
    )
    assert [result.tokens for result in found] == expected[2:]


def test_a_conversation_that_the_assistant_speaks_last_in_is_continued() -> None:
    reader = tiny_tokenizer()
    reader.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
    model, settings = tiny_model(len(reader)), {"watermark": caw.KGW(key=1), "max_new_tokens": 6, "progress": False}
    talk = [USER, {"role": "assistant", "content": "so it"}]
    whole = reader("<user>why;<assistant>so it", add_special_tokens=False)["input_ids"]
    expected = caw.generate(model, reader, [whole], **settings).sequences
    assert caw.generate(model, reader, talk, chat=True, **settings).sequences == expected


@pytest.mark.parametrize(("prompts", "settings", "message"), [
    (TALKS[:1], {"chat": False}, "a conversation, which needs the model's chat template; say chat=True"),
    (TALKS[1], {"chat": False}, "prompt 0 is a conversation, which needs"),
    ([[{"role": "user"}]], {}, "prompt 0 is no conversation for this model: message 0 of role 'user' must have"),
    ([[{"role": "user", "content": "\ud800"}]], {}, "must be valid Unicode"),
    ([[USER, "why"]], {}, "prompt 0 must be a str or a list of messages with chat=True, got list"),
    ([USER, "why"], {}, "must be a str or a list of messages with chat=True, got dict"),
])  # fmt: skip
def test_conversations_that_are_none(prompts: Any, settings: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError, PromptWarning), match=re.escape(message)), warnings.catch_warnings():
        warnings.simplefilter("error")
        chat(prompts, **settings)


def test_conversations_need_a_template() -> None:
    reader = tiny_tokenizer(chat=False)
    with pytest.raises(ValueError, match="chat=True needs a tokenizer with a chat template"):
        caw.generate(tiny_model(len(reader)), reader, TALKS, chat=True)
