"""Texts that are continued: only with proof, and then as if they had never been interrupted."""

import contextlib
import json
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from serve.serving import KEY, MARK, NAME, Running, parts, running

import caw
from caw.serve import continuing
from caw.serve.continuing import Continuations, TextSoFar, before_text, same_text
from caw.serve.errors import ApiError
from caw.serve.marking import EVIDENT, fewest_marked

PROMPT = "the sky is blue because"
MARKS = {
    "kgw": MARK, "selfhash": caw.KGW(key=1, seeding="selfhash"), "unigram": caw.Unigram(key=1), "exp": caw.EXP(key=1),
    "synthid": caw.SynthID(key=1), "transformers": caw.KGW(key=1, format="transformers"),
    "selfhash of transformers": caw.KGW(key=1, format="transformers", seeding="selfhash"),
}  # fmt: skip
WHOLE = 48


def said(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer.caw
    return found


def token_of(answer: Any) -> str:
    [token] = said(answer)["continuations"]
    return str(token)


def one_by_one(
    server: Running, step: int, *, proof: bool, ids: bool = False, **settings: Any
) -> tuple[str, list[bool]]:
    """(a text put together from answers of `step` tokens, what each answer said of its mark)."""
    tokenizer, text, marked, token = parts()[1], "", [], None
    start = tokenizer(PROMPT)["input_ids"]
    for _ in range(0, WHOLE, step):
        prompt = [*start, *tokenizer(text)["input_ids"]] if ids else PROMPT + text
        extra = {"continuation": token} if proof and token else {}
        answer = server.complete(prompt, max_tokens=step, extra_body=extra, **settings)
        text += answer.choices[0].text
        marked.append(said(answer)["marked"])
        if answer.choices[0].finish_reason != "length":
            break
        token = token_of(answer)
    return text, marked


@pytest.fixture(scope="module", params=MARKS)
def marked_by(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Running]]:
    with running(MARKS[request.param]) as server:
        yield MARKS[request.param], server


def without_cut_letters(text: str) -> str:
    return text.replace("\ufffd", "")


@pytest.mark.parametrize("ids", [False, True])
def test_a_continued_text_is_that_of_one_request(marked_by: tuple[Any, Running], ids: bool) -> None:
    _, server = marked_by
    whole = server.complete(PROMPT, max_tokens=WHOLE)
    server.idle()
    once = server.log.closed[-1]
    text, marked = one_by_one(server, 16, proof=True, ids=ids)
    server.idle()
    last, begun = server.log.closed[-1], server.log.begun[-len(marked) :]
    assert without_cut_letters(text) == without_cut_letters(whole.choices[0].text)
    for name in ("digest", "tokens", "p_value", "marked", "open"):
        assert getattr(last, name) == getattr(once, name)
    assert [one.continues for one in begun] == ["", *(one.id for one in begun[:-1])]
    assert marked[-1] == said(whole)["marked"]


def test_short_answers_are_called_marked_only_where_contexts_are_whole(marked_by: tuple[Any, Running]) -> None:
    mark, server = marked_by
    fewest = fewest_marked(mark)
    for most in {1, fewest - 1, fewest} - {0}:
        answer = server.complete(PROMPT, max_tokens=most)
        server.idle()
        closed = server.log.closed[-1]
        assert closed.marked == said(answer)["marked"] == (closed.open >= fewest or closed.p_value <= EVIDENT)
        assert most - 1 <= closed.open <= most == answer.usage.completion_tokens


def test_how_many_tokens_a_marked_text_has_at_the_least() -> None:
    """Three quarters of them have a whole context: of n tokens the first W have none."""
    assert [fewest_marked(MARKS[name]) for name in ("kgw", "selfhash", "unigram", "exp", "synthid")] == [
        4, 12, 1, 16, 16,
    ]  # fmt: skip
    for mark in MARKS.values():
        least = fewest_marked(mark)
        assert least - mark.window >= 0.75 * least > 0
        assert least == 1 or (least - 1) - mark.window < 0.75 * (least - 1)


def test_an_answer_cut_short_by_a_stop_string_is_not_called_marked(served: Running) -> None:
    text = served.complete(PROMPT, max_tokens=30).choices[0].text
    answer = served.complete(PROMPT, max_tokens=30, stop=text[1])
    assert answer.choices[0].finish_reason == "stop" and said(answer)["marked"] is False
    assert "continuations" not in said(answer)


@pytest.fixture(scope="module")
def short(served: Running) -> Any:
    return served.complete(PROMPT, max_tokens=12)


def refused(server: Running, prompt: Any, token: str, match: str, **settings: Any) -> None:
    begun = len(server.log.begun)
    with pytest.raises(openai.BadRequestError, match=match):
        server.complete(prompt, extra_body={"continuation": token}, **settings)
    assert len(server.log.begun) == begun, "nothing was made"


def test_false_claims_are_refused(served: Running, short: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    token, text = token_of(short), short.choices[0].text
    for forged in (token[:-4] + "AAAA", token[8:], "A" * len(token), "é", "x", token[:50] + "B" + token[51:]):
        refused(served, PROMPT + text, forged, "must be a token that this server issued for this API key")
    for other in ("two", "free"):
        refused(served, PROMPT + text, token, "must be a token that this server issued", key=other)
    refused(served, PROMPT + text + "!", token, "ends with its text")
    refused(served, PROMPT + without_cut_letters(text)[:-1], token, "ends with its text")
    refused(served, PROMPT, token, "ends with its text")
    refused(served, PROMPT + "?" + text, token, "belongs to another prompt")
    refused(served, PROMPT + text, token, "requires n = 1 and no", n=2)
    refused(served, [PROMPT + text] * 2, token, "several; send one")
    refused(served, PROMPT + text, token, "a stop string occurs in the text so far", stop=without_cut_letters(text)[0])
    clock = served.service.continuations.clock
    monkeypatch.setattr(served.service.continuations, "clock", lambda: clock() + continuing.LIFE + 1)
    refused(served, PROMPT + text, token, "is valid for 24 hours")


def test_a_text_that_the_client_wrote_is_no_context(served: Running) -> None:
    own = " red light and small words"
    claimed = served.complete(PROMPT + own, max_tokens=12).choices[0].text
    mark = MARK.with_key(KEY)
    [new] = caw.generate(*parts(), PROMPT + own, watermark=mark, max_new_tokens=12, progress=False).texts
    assert claimed == new


def test_drawn_texts_go_on_with_their_own_draws(served: Running) -> None:
    settings = {"temperature": 1.0, "n": 3, "seed": 5}
    whole = served.complete(PROMPT, max_tokens=20, **settings)
    parts_ = served.complete(PROMPT, max_tokens=7, **settings)
    assert len(set(said(parts_)["continuations"])) == 3
    for choice, token in enumerate(said(parts_)["continuations"]):
        text = parts_.choices[choice].text
        rest = served.complete(PROMPT + text, max_tokens=13, temperature=1.0, extra_body={"continuation": token})
        joined = without_cut_letters(text + rest.choices[0].text)
        assert joined == without_cut_letters(whole.choices[choice].text)


def test_streams_and_log_probabilities(served: Running) -> None:
    whole = served.complete(PROMPT, max_tokens=20, logprobs=2)
    events = list(served.complete(PROMPT, max_tokens=8, stream=True))
    assert [hasattr(event, "caw") for event in events] == [False] * (len(events) - 1) + [True]
    text, token = "".join(event.choices[0].text for event in events), token_of(events[-1])
    rest = list(
        served.complete(PROMPT + text, max_tokens=12, stream=True, logprobs=2, extra_body={"continuation": token})
    )
    assert without_cut_letters(text + "".join(e.choices[0].text for e in rest)) == without_cut_letters(
        whole.choices[0].text
    )
    values = [
        value for event in rest if event.choices[0].logprobs for value in event.choices[0].logprobs.token_logprobs
    ]
    assert values == pytest.approx(whole.choices[0].logprobs.token_logprobs[8:], abs=1e-4)
    plain = served.complete(PROMPT + text, max_tokens=12, logprobs=2, extra_body={"continuation": token})
    assert plain.choices[0].logprobs.token_logprobs == pytest.approx(values, abs=1e-4)
    assert plain.usage.completion_tokens == 12
    assert plain.usage.prompt_tokens == len(parts()[1](PROMPT)["input_ids"]) + 8


@pytest.mark.parametrize("extra", [{}, {"continue_final_message": True, "add_generation_prompt": False}])
def test_chats_go_on_from_their_last_message(served: Running, extra: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "why is the sky blue"}]
    ask = served.client().chat.completions.create
    settings: dict[str, Any] = {"model": NAME, "temperature": 0}
    whole = ask(messages=messages, max_tokens=20, **settings).choices[0].message.content
    part = ask(messages=messages, max_tokens=8, **settings)
    text = part.choices[0].message.content
    answered = [*messages, {"role": "assistant", "content": text}]
    body = {**extra, "continuation": token_of(part)}
    rest = ask(messages=answered, max_tokens=12, extra_body=body, **settings)
    assert without_cut_letters(text + rest.choices[0].message.content) == without_cut_letters(whole)
    for wrong in (messages, [*answered, {"role": "user", "content": "go on"}], [answered[1]], [*messages, *answered]):
        with pytest.raises(openai.BadRequestError, match=r"ends with its text|belongs to another prompt"):
            ask(messages=wrong, max_tokens=12, extra_body=body, **settings)


def test_json_mode_goes_on_inside_its_schema(served: Running) -> None:
    pytest.importorskip("llguidance")
    settings = {"extra_body": {}, "temperature": 1.0, "seed": 2}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "required": ["name"],
            "properties": {"name": {"type": "string", "maxLength": 12}}, "additionalProperties": False}}}  # fmt: skip
    settings["extra_body"] = {"response_format": form}
    whole = served.complete(PROMPT, max_tokens=60, **settings)
    part = served.complete(PROMPT, max_tokens=6, **settings)
    settings["extra_body"] = {"response_format": form, "continuation": token_of(part)}
    rest = served.complete(PROMPT + part.choices[0].text, max_tokens=54, **settings)
    joined = without_cut_letters(part.choices[0].text + rest.choices[0].text)
    assert joined == without_cut_letters(whole.choices[0].text) and set(json.loads(joined)) == {"name"}
    plain = served.complete(PROMPT, max_tokens=6)
    settings["extra_body"] = {"response_format": form, "continuation": token_of(plain)}
    with pytest.raises(openai.BadRequestError, match="the text so far does not match the schema"):
        served.complete(PROMPT + plain.choices[0].text, max_tokens=54, **settings)


def test_enforcement_refuses_short_requests_and_takes_continued_ones(served: Running) -> None:
    for most in (1, 2, 4):
        with pytest.raises(
            openai.BadRequestError, match=r"this server sends only detectable texts, which have at least \d+ tok"
        ):
            served.complete(PROMPT, key="strict", max_tokens=most)
    first = served.complete(PROMPT, key="strict", max_tokens=160)
    rest = served.complete(
        PROMPT + first.choices[0].text, key="strict", max_tokens=1, extra_body={"continuation": token_of(first)}
    )
    assert said(rest)["marked"] and served.log.closed[-1].detected
    assert served.log.closed[-1].tokens == 161


def test_a_token_is_the_servers_own() -> None:
    part = TextSoFar((5, 6, 2**31), 1, math.inf, 3, True, "00", 3, 2**64 - 1, 0, "id", 100)
    about = ("tenant", "key", "")
    mine = Continuations(b"secret", lambda: 99)
    assert mine.read(mine.give(part, about), about) == part
    assert "secret" not in repr(vars(mine)["clock"]) and b"secret" not in mine.give(part, about).encode()
    with contextlib.suppress(AssertionError):
        assert mine.give(part, about) == mine.give(part, about)
    for other, names in (
        (Continuations(b"other"), about),
        (mine, ("tenant", "key2", "")),
        (mine, ("tenantkey", "", "")),
    ):
        with pytest.raises(ApiError, match="must be a token that this server issued"):
            other.read(mine.give(part, about), names)


def test_letters_that_were_cut_may_stand_as_they_were_sent() -> None:
    assert same_text("a\ufffdé", "aé") and not same_text("a\ufffde", "aé")
    assert before_text("promptaé", "aé") == ["prompt"]
    assert before_text("prompt\ufffda\ufffdé\ufffd", "a\ufffdé") == ["prompt\ufffd", "prompt"]
    assert before_text("prompt", "aé") == before_text("é", "aé") == []
