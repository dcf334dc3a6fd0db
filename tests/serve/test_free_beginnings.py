"""Which requests have a free beginning: the request alone decides, so that beginnings cannot be joined to a text."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from serve.serving import KEY, NAME, Running, chat_ids, parts, running
from serve.test_offers import TEMPLATE
from serve.test_tools import tool

import caw
from caw.defaults import FREE_TOKENS

MARK = caw.EXP(key=KEY, strength="scale", context_width=2)
ASKED: dict[str, Any] = {"temperature": 1.2, "seed": 7}
MESSAGE = {"role": "user", "content": "the sky"}
LONG = FREE_TOKENS + 4 * MARK.window


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(MARK, caw.FixedStrength(1.0)) as served:
        yield served


def text(ids: list[int], free: float | None, most: int, **settings: Any) -> str:
    """What the library makes of the same prompt with this beginning."""
    [made] = caw.generate(
        *parts(), [ids], watermark=dataclasses.replace(MARK, free=free), max_new_tokens=most, do_sample=True,
        progress=False, **ASKED, **settings,
    ).texts  # fmt: skip
    return made


def chat(server: Running, most: int, *messages: dict[str, str], **settings: Any) -> str:
    answer = server.client("one").chat.completions.create(
        model=NAME, messages=[MESSAGE, *messages], max_tokens=most, **ASKED, **settings
    )
    return str(answer.choices[0].message.content)


def test_a_long_answer_begins_freely_and_others_do_not(server: Running) -> None:
    ids = chat_ids(MESSAGE)
    assert text(ids, None, LONG) != text(ids, 0, LONG)
    assert chat(server, LONG) == text(ids, None, LONG)
    assert chat(server, LONG - 1) == text(ids, 0, LONG - 1)
    assert chat(server, LONG, stop=["no such text"]) == text(ids, 0, LONG)
    assert chat(server, LONG, logit_bias={"9": 1.0}) == text(ids, 0, LONG, logit_bias={9: 1.0})
    plain = server.complete("the sky", max_tokens=LONG, **ASKED).choices[0].text
    assert plain == text(parts()[1]("the sky")["input_ids"], 0, LONG)


def test_a_text_that_may_call_has_none(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts()[1], "chat_template", TEMPLATE)
    ids = parts()[1]("look;the sky", add_special_tokens=False)["input_ids"]
    assert chat(server, LONG, tools=[tool("look")]) == text(ids, 0, LONG) != text(ids, None, LONG)


def test_a_text_has_one_beginning(server: Running) -> None:
    """Cut after its beginning and continued it is that of one request, as a text behind the client's own is."""
    whole = text(chat_ids(MESSAGE), None, 2 * LONG)
    first = server.client("one").chat.completions.create(model=NAME, messages=[MESSAGE], max_tokens=LONG, **ASKED)
    token = first.caw["continuations"][0]
    sofar = {"role": "assistant", "content": first.choices[0].message.content}
    rest = chat(server, LONG, sofar, extra_body={"continuation": token})
    assert (sofar["content"] + rest).replace("\ufffd", "") == whole.replace("\ufffd", "")
