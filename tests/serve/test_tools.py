"""Calls of functions: JSON of their parameters, marked like other texts, in OpenAI's form."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from serve.serving import DIRECTORY, KEY, NAME, OTHER, Directory, Running, parts, running
from serve.test_grammars import LONG, SMALL, p_value

from caw.detectable.receipts import text_digest
from caw.serve.contracts import MarkKey, MarkRules, Tenant

pytest.importorskip("llguidance")
ASK: Any = [{"role": "user", "content": "the weather?"}]


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "does it", "parameters": parameters}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    rules = {"exempt": MarkRules(exempt_tools=True, detectable_at=1e-2), "found": MarkRules(detectable_at=1e-6)}
    tenants = {name: Tenant(name, MarkKey("k1", KEY), rule) for name, rule in rules.items()}
    with running(directory=Directory({**DIRECTORY.tenants, **tenants}), max_factor=4.0) as found:
        yield found


def call(served: Running, tools: Any, choice: Any, *, key: str = "one", **settings: Any) -> Any:
    asked = {"temperature": 0, "max_tokens": 220, "messages": ASK, **settings}
    answer: Any = served.client(key).chat.completions.create(model=NAME, tools=tools, tool_choice=choice, **asked)
    return answer if asked.get("stream") else answer.choices[0]


def test_a_named_function_is_called_and_its_call_is_marked(served: Running) -> None:
    found = call(served, [tool("other"), tool("look", LONG)], named("look"))
    [one] = found.message.tool_calls
    assert (found.finish_reason, found.message.content, one.type, one.function.name) == (
        "tool_calls", None, "function", "look",
    )  # fmt: skip
    assert len(json.loads(one.function.arguments)["a"]) == 200 and one.id.startswith("call_")
    assert p_value(one.function.arguments, KEY) < 1e-9 and p_value(one.function.arguments, OTHER) > 1e-3
    served.idle()
    assert served.log.closed[-1].digest == text_digest(one.function.arguments)
    chunks = [chunk.choices[0] for chunk in call(served, [tool("look", LONG)], named("look"), stream=True)]
    calls = [each for chunk in chunks for each in chunk.delta.tool_calls or ()]
    assert [(each.index, each.function.name, each.function.arguments) for each in calls] == [
        (0, "look", one.function.arguments)
    ]
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["tool_calls"]


def test_the_model_chooses_among_several(served: Running) -> None:
    tools = {"small": SMALL, "none": None, "pair": {"type": "object", "properties": {"x": {"type": "boolean"}}}}
    given = [tool(name, schema) for name, schema in tools.items()]
    asked: dict[str, Any] = {"temperature": 1.5, "seed": 3, "n": 12, "max_tokens": 120}
    answer = served.client().chat.completions.create(  # type: ignore[call-overload]
        model=NAME, tools=given, tool_choice="required", messages=ASK, **asked
    )
    whole = [each.message.tool_calls[0].function for each in answer.choices if each.finish_reason == "tool_calls"]
    assert len(whole) > 6 and len({each.name for each in whole}) > 1
    for each in whole:
        found = json.loads(each.arguments)
        assert set(found) == {"small": {"a", "n"}, "none": set(), "pair": set(found) & {"x"}}[each.name]


def test_calls_are_exempt_only_where_the_operator_says_so(served: Running) -> None:
    given: Any = [tool("look", LONG)], named("look")
    text = call(served, *given, key="exempt").message.tool_calls[0].function.arguments
    served.idle()
    begun, closed = served.log.begun[-1], served.log.closed[-1]
    assert p_value(text, KEY) > 1e-3 and begun.unmarked == "tool calls are exempted" and begun.key_id == ""
    assert closed.detected is closed.tested is None
    wanted = call(served, *given, key="exempt", extra_body={"watermark": True})
    assert p_value(wanted.message.tool_calls[0].function.arguments, KEY) < 1e-2
    plain = served.client("exempt").chat.completions.create(model=NAME, messages=ASK, max_tokens=20, temperature=0)
    assert plain.to_dict()["caw"]["marked"], "other texts are marked"  # type: ignore[index]
    found = call(served, *given, key="found").message.tool_calls[0].function.arguments
    served.idle()
    assert p_value(found, KEY) < 1e-6 and served.log.closed[-1].detected
    tested = served.log.closed[-1].tested
    assert tested is not None and tested["digest"] == text_digest(found) and tested["level"] == 1e-6


def test_a_call_that_is_cut_says_so(served: Running) -> None:
    cut = call(served, [tool("look", LONG)], named("look"), max_tokens=30)
    assert cut.finish_reason == "length" and cut.message.tool_calls[0].function.arguments.startswith('{"a":"')
    within = call(served, [tool("look", LONG), tool("other")], "required", max_tokens=5)
    assert within.finish_reason == "length" and not within.message.tool_calls


def test_without_a_call_asked_for_tools_change_nothing(served: Running) -> None:
    plain = served.client().chat.completions.create(model=NAME, messages=ASK, max_tokens=20, temperature=0)
    assert call(served, [tool("look")], "none", max_tokens=20).message.content == plain.choices[0].message.content


def test_what_is_not_served_is_refused(served: Running) -> None:
    for change, parameter, said in (
        ({"tool_choice": "auto"}, "tool_choice", "shows calls as JSON"), ({}, "tool_choice", "name a function, or use"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "requires tools, got none"),
        ({"tool_choice": named("nobody")}, "tool_choice", "must name a function in tools"),
        ({"tools": [tool("a"), tool("a")]}, "tools", "unique names"),
        ({"tools": [tool("a b")]}, "tools", "pattern"), ({"tools": [{"type": "custom"}]}, "tools", "function"),
        ({"tool_choice": named("look"), "stop": "x"}, "stop", "tools and stop exclude each other"),
        ({"tool_choice": named("look"), "response_format": {"type": "json_object"}}, "response_format", "got both"),
        ({"tools": [tool("look", {"not": {}})], "tool_choice": named("look")}, "tools", "unsupported schema:"),
    ):  # fmt: skip
        with pytest.raises(openai.BadRequestError, match=said) as caught:
            served.client().chat.completions.create(
                **{"model": NAME, "messages": ASK, "tools": [tool("look")], "max_tokens": 4, **change}
            )
        assert str(caught.value.param).startswith(parameter)


def test_templates_are_given_functions_and_earlier_calls(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template without a place for calls would leave them out in silence."""
    arguments = json.dumps({"city": "Oslo"})
    earlier = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    asked: dict[str, Any] = {"messages": [
        *ASK, {"role": "assistant", "content": None, "tool_calls": [earlier]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]}  # fmt: skip
    given: Any = [tool("look", SMALL)], named("look")
    with pytest.raises(openai.BadRequestError, match="no place for calls"):
        call(served, *given, **asked)
    template = (
        "{% for t in tools %}{{ t.function.name }};{% endfor %}{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments.city }}){% endfor %};"
        "{% endfor %}"
    )
    monkeypatch.setattr(parts()[1], "chat_template", template)
    texts: list[str] = []
    read = served.service.prompts._encode
    monkeypatch.setattr(
        served.service.prompts, "_encode", lambda text, whole: (texts.append(text), read(text, whole=whole))[1]
    )
    assert json.loads(call(served, *given, **asked).message.tool_calls[0].function.arguments)["n"] < 100
    assert texts == ["look;the weather?;look(Oslo);rain;"]
    earlier["function"]["arguments"] = "[1]"  # type: ignore[index]
    with pytest.raises(openai.BadRequestError, match="must be a JSON object"):
        call(served, *given, **asked)
