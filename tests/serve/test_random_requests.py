"""Requests drawn at random from all that is served: each makes its texts, whole and streamed alike, with receipts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion
from serve.serving import MARK, NAME, Running
from serve.test_answering import post, raw_request
from serve.test_grammars import SMALL, form
from serve.test_tools import named, tool

from caw.detectable.receipts import text_digest
from caw.serve.marking import fewest_marked

pytestmark = pytest.mark.gate("serve")
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
SHARED = {
    "max_tokens": st.integers(1, 12), "temperature": st.none() | st.floats(0, 2),
    "top_p": st.none() | st.floats(0.01, 1),
    "n": st.none() | st.integers(1, 3), "seed": st.integers(0, (1 << 64) - 1), "stop": st.none() | TEXT
    | st.lists(TEXT, max_size=4), "presence_penalty": st.sampled_from([0, 0.0, None]), "user": TEXT,
    "logit_bias": st.just({}), "watermark": st.sampled_from([True, None]),
}  # fmt: skip
PROMPTS = TEXT | st.lists(TEXT, min_size=1, max_size=2) | st.lists(st.integers(0, 255), min_size=1, max_size=20)
ROLES = st.sampled_from(["system", "developer", "user", "assistant"])
MESSAGES = st.lists(st.fixed_dictionaries({"role": ROLES, "content": TEXT}), min_size=1, max_size=2)
FORMS = st.sampled_from([
    {}, {}, {"response_format": {"type": "text"}}, {"response_format": {"type": "json_object"}},
    {"response_format": form(SMALL)}, {"tools": [tool("a", SMALL)], "tool_choice": named("a"), "stop": None},
    {"tools": [tool("a"), tool("b", SMALL)], "tool_choice": "required", "stop": None},
])  # fmt: skip
CHATS = st.tuples(
    st.fixed_dictionaries({"messages": MESSAGES}, optional=SHARED | {"logprobs": st.booleans()}), FORMS
).map(lambda pair: {**pair[0], **pair[1]})
COMPLETIONS = st.fixed_dictionaries({"prompt": PROMPTS}, optional=SHARED | {"logprobs": st.integers(0, 5)})


def texts_of(answer: Any) -> list[str]:
    """What each choice of a whole answer says."""
    out = []
    for choice in answer["choices"]:
        calls = choice.get("message", {}).get("tool_calls") or []
        said = choice.get("text") or choice.get("message", {}).get("content") or ""
        out.append(said or "".join(call["function"]["arguments"] for call in calls))
    return out


def streamed(served: Running, path: str, asked: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(texts, reasons to end) of the same request as a stream."""
    body = raw_request(served.port, json.dumps({**asked, "stream": True}).encode(), path)
    *events, done, _ = body.decode().split("\n\n")
    assert done == "data: [DONE]"
    texts, reasons = dict[int, str](), dict[int, str]()
    for event in events:
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            delta = choice.get("delta", {})
            calls = "".join(call["function"]["arguments"] for call in delta.get("tool_calls") or ())
            place = choice["index"]
            texts[place] = texts.get(place, "") + (choice.get("text") or delta.get("content") or calls)
            reasons[place] = choice["finish_reason"] or reasons.get(place, "")
    return [texts[place] for place in sorted(texts)], [reasons[place] for place in sorted(reasons)]


@given(st.sampled_from(["/v1/chat/completions", "/v1/completions"]), st.data())
@settings(max_examples=300, deadline=None, database=None, phases=[Phase.generate], derandomize=True,
          suppress_health_check=list(HealthCheck))  # fmt: skip
def test_what_is_served_is_served(served: Running, path: str, data: Any) -> None:
    chat = path == "/v1/chat/completions"
    asked = {"model": NAME, "seed": 1, "max_tokens": 7, **data.draw(CHATS if chat else COMPLETIONS)}
    before = len(served.log.closed)
    status, answer = post(served.port, json.dumps(asked).encode(), path)
    assert status == 200, (asked, answer)
    (ChatCompletion if chat else Completion).model_validate(answer)
    texts, count = texts_of(answer), len(answer["choices"])
    prompts = asked["prompt"] if not chat and isinstance(asked["prompt"], list) else [""]
    many = len(prompts) if all(isinstance(one, str) for one in prompts) else 1
    assert count == many * (asked.get("n") or 1)
    assert 0 < answer["usage"]["completion_tokens"] <= count * asked["max_tokens"]
    assert streamed(served, path, asked) == (texts, [choice["finish_reason"] for choice in answer["choices"]])
    closed = served.log.closed[before:]
    assert len(closed) == 2 * count and {one.ending for one in closed} == {"complete"}
    fewest = fewest_marked(MARK)  # of the tokens that are shown: an end token counts among a receipt's, too
    assert all(fewest <= one.tokens if one.marked else one.tokens <= fewest for one in closed)
    assert answer["caw"]["marked"] == all(one.marked for one in closed)
    if len(asked.get("tools") or []) < 2:  # else the digest is of the name, too
        assert [one.digest for one in closed[:count]] == [text_digest(text) for text in texts]
