"""A text is called marked by what its mark chose: forced and dictated tokens and free beginnings are not that."""

import dataclasses
from typing import Any

import openai
import pytest
from serve.serving import DIRECTORY, KEY, NAME, Directory, Running, chat_ids, parts, running

import caw
from caw.defaults import FREE_TOKENS
from caw.serve import thinking
from caw.serve.beginnings import GRACE, REMEMBERED, SHARE, Beginnings
from caw.serve.contracts import Closed, MarkKey, MarkRules, Tenant
from caw.serve.marking import ENOUGH, Marking

PROMPT, WORDS = "the sky is blue because", "all of these small words are the client's own"
FORCED = 9


def last(server: Running) -> Closed:
    server.idle()
    return server.log.closed[-1]


def test_dictated_text_is_not_marked(served: Running) -> None:
    pytest.importorskip("llguidance")
    for schema, most in (({"const": WORDS}, 0), ({"enum": [WORDS, "b" + WORDS]}, 1)):
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        answer = served.complete(PROMPT, max_tokens=100, extra_body={"response_format": form})
        assert WORDS in answer.choices[0].text and answer.caw["marked"] is False
        assert last(served).open <= most and not last(served).marked
    free = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "string", "minLength": 40}}}
    assert served.complete(PROMPT, max_tokens=40, extra_body={"response_format": free}).caw["marked"]
    assert last(served).open > 30


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 1.0, "seed": 3}])
def test_forced_tokens_are_not_marked(served: Running, settings: dict[str, Any]) -> None:
    """In one answer, and one by one in a text that is continued; the answers' p-values are noise."""
    once = served.complete(PROMPT, max_tokens=30, logit_bias={str(FORCED): 100}, **settings)
    assert (once.caw["marked"], last(served).open, last(served).tokens) == (False, 0, 30)
    text, extra = "", {}
    for token in parts()[1](WORDS)["input_ids"]:
        answer = served.complete(
            PROMPT + text, max_tokens=1, logit_bias={str(token): 100}, extra_body=extra, **settings
        )
        text, extra = text + answer.choices[0].text, {"continuation": answer.caw["continuations"][0]}
        assert (answer.caw["marked"], last(served).open) == (False, 0)
    assert text == WORDS
    rest = served.complete(PROMPT + text, max_tokens=120, extra_body=extra, **settings)
    assert rest.caw["marked"] == (last(served).p_value <= 0.01) and last(served).open > 110


def test_enforcement_lets_no_bias_choose_in_a_continuation(served: Running) -> None:
    first = served.complete(PROMPT, key="strict", max_tokens=160)
    asked = {"key": "strict", "max_tokens": 1, "extra_body": {"continuation": first.caw["continuations"][0]}}
    with pytest.raises(openai.BadRequestError, match="takes a logit_bias of at most 1 here; leave out greater ones"):
        served.complete(PROMPT + first.choices[0].text, logit_bias={"9": 1.5}, **asked)
    assert served.complete(PROMPT + first.choices[0].text, logit_bias={"9": 1.0}, **asked).caw["marked"]


def test_evidence_decides_where_there_is_some() -> None:
    marking = Marking("k", "", 1.0, 0.0, None, False, False, 8)
    for tokens, open, p, steered, marked in (
        (7, 7, 1e-9, False, False), (8, 8, 0.9, False, True), (8, 7, 0.2, False, False), (8, 0, 0.01, False, True),
        (99, ENOUGH - 1, 0.9, False, True), (99, ENOUGH, 0.51, False, False), (99, ENOUGH, 0.5, False, True),
        (99, 99, None, False, True), (99, 99, None, True, False), (99, 99, 0.02, True, False),
        (99, 0, 0.01, True, True),
    ):  # fmt: skip
        assert marking.carried(tokens, open, p, steered=steered) is marked, (tokens, open, p, steered)
        assert not dataclasses.replace(marking, unmarked="x").carried(tokens, open, p, steered=steered)


def test_beginnings_are_a_share_of_what_a_tenant_gets() -> None:
    counts = Beginnings()
    cut = 0
    while counts.allowed("a"):
        counts.add("a", FREE_TOKENS, 0)
        counts.add("a", 10 - FREE_TOKENS, 10)
        cut += 10
    assert cut <= GRACE / (1 - SHARE) and counts.allowed("b")
    counts.add("a", 0, int(FREE_TOKENS / SHARE))
    assert counts.allowed("a")
    for _ in range(20):  # at once: each counts as the longest until it is known
        counts.add("b", FREE_TOKENS, 0)
    assert not counts.allowed("b")
    counts.add("b", 0, 100 * REMEMBERED)
    counts.add("b", 9 * GRACE, 10 * GRACE)
    assert counts.allowed("b")


def test_who_cuts_streams_gets_no_more_beginnings(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = caw.EXP(key=KEY, strength="scale", context_width=2)
    asked: Any = {"model": NAME, "messages": [{"role": "user", "content": "the sky"}], "max_tokens": 80, "seed": 7}
    with running(mark, caw.FixedStrength(1.0)) as server:
        chat = server.client().chat.completions
        before = chat.create(**asked).choices[0].message.content
        while server.service.beginnings.allowed("one"):
            with chat.create(**asked, stream=True) as stream:
                for _ in range(3):
                    next(iter(stream))
            server.idle()
        assert chat.create(**asked).choices[0].message.content != before
        server.service.beginnings.add("one", 0, REMEMBERED)
        assert chat.create(**asked).choices[0].message.content == before


def test_a_text_cut_in_an_exempt_section_has_its_beginning_later(monkeypatch: pytest.MonkeyPatch) -> None:
    _, tokenizer = parts()
    monkeypatch.setattr(tokenizer, "chat_template", tokenizer.chat_template + "<think>")
    message, mark = {"role": "user", "content": "x"}, caw.EXP(key=KEY, strength="scale", context_width=2)
    sampled: Any = {"temperature": 1.0, "seed": 7}
    own = caw.generate(*parts(), [chat_ids(message)], max_new_tokens=90, do_sample=True, progress=False, **sampled)
    monkeypatch.setattr(thinking, "CLOSE", tokenizer.decode(own.sequences[0][78:84]))
    tenant = Tenant("one", MarkKey("k1", KEY), MarkRules(exempt_thinking=True))
    with running(mark, caw.FixedStrength(1.0), Directory({**DIRECTORY.tenants, "one": tenant})) as server:

        def ask(most: int, *more: dict[str, str], **extra: Any) -> Any:
            messages: Any = [message, *more]
            return server.client().chat.completions.create(
                model=NAME, messages=messages, max_tokens=most, extra_body=extra, **sampled
            )

        whole, first = ask(200), ask(76)
        said = first.choices[0].message.content
        rest = ask(124, {"role": "assistant", "content": said}, continuation=first.caw["continuations"][0])
        assert (said + rest.choices[0].message.content).replace("\ufffd", "") == whole.choices[
            0
        ].message.content.replace("\ufffd", "")
        assert 0 < last(server).open < 200 - 84
