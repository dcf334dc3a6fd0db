"""Functions that the model may call or not: texts as models write them, marked but for their calls."""

import copy
import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from serve.serving import DIRECTORY, KEY, NAME, Directory, Running, parts, running
from serve.test_grammars import p_value
from serve.test_tools import tool

from caw.decoding.stopping import StopStrings
from caw.serve.contracts import MarkKey, MarkRules, Tenant
from caw.serve.grammars import Grammar
from caw.serve.offers import Offer
from caw.serve.service import Service
from caw.serve.thinking import Thinking
from caw.serve.tools import Function

llguidance = pytest.importorskip("llguidance")
TEMPLATE = (
    "{% for t in tools %}{{ t.function.name }};{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
    '{# <tool_call>{"name": ..., "arguments": ...}</tool_call> #}'
)
TALK, CALL = "[a-z ]{150}", r'<tool_call>\n\{"name": "look", "arguments": \{"city": "[a-z]{90}"\}\}\n</tool_call>'


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    rules = {
        "spared": MarkRules(exempt_tools=True), "strict": MarkRules(1e-3, True, 100, exempt_tools=True),
        "all": MarkRules(1e-3, True, 100), "thinks": MarkRules(1e-3, True, 100, exempt_thinking=True),
    }  # fmt: skip
    tenants = {name: Tenant(name, MarkKey("k1", KEY), rule) for name, rule in rules.items()}
    with running(directory=Directory({**DIRECTORY.tenants, **tenants}), max_length=512) as found:
        yield found


@pytest.fixture
def writes(served: Running, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model that calls as its template says: texts match this expression."""
    monkeypatch.setattr(parts()[1], "chat_template", TEMPLATE)
    grammars, text = served.service.grammars, Service._text
    assert grammars is not None

    def write(expression: str) -> None:
        rule = llguidance.LLMatcher.grammar_from_regex(expression)
        first = llguidance.LLMatcher(grammars.tokenizer, rule)

        def made(*given: Any) -> Any:
            return text(*given[:-1], lambda: Grammar(first.deep_copy(), grammars.vocab_size))

        monkeypatch.setattr(Service, "_text", made)

    return write


def ask(served: Running, key: str = "one", **asked: Any) -> Any:
    given: Any = {"temperature": 0, "max_tokens": 400, "messages": [{"role": "user", "content": "the weather?"}]}
    answer: Any = served.client(key).chat.completions.create(model=NAME, tools=[tool("look")], **given | asked)  # type: ignore[list-item]
    return answer if asked.get("stream") else answer.choices[0]


@pytest.mark.parametrize(
    ("text", "outside", "called"),
    [
        ('<tool_call>\n{"name": "a", "arguments": {"x": "é"}}\n</tool_call>', "", [("a", '{"x": "é"}')]),
        ('So.\n<tool_call>{"name": "a", "arguments": {}}</tool_call>\n<tool_call>{"name":"b","arguments":{}}',
         "So.", [("a", "{}"), ("b", "{}")]),
        ('<think><tool_call></think>\n<tool_call>{"arguments": {}, "name": "a"}</tool_call>',
         "<think><tool_call></think>", [("a", "{}")]),
        ('<tool_call>{"name": "c", "arguments": {}}</tool_call>', None, []),
        ('<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', None, []),
        ('<tool_call>{"name": "a", "arguments": {"x": 1e999}}</tool_call>', None, []),
        ('<tool_call>{"name": ["a"], "arguments": {}}</tool_call>', None, []),
        ('<tool_call>{"name": "a", "arguments": "x"}</tool_call>', None, []),
        ('<tool_call>{"name": "a", "arguments": {"x": 1', None, []),
        ('<tool_call>{"name": "a", "arguments": {}} and so on', None, []),
        ('<tool_call>{"name": "a", "arguments": {}}</tool_call><tool_call>[1]</tool_call>', None, []),
        (" no call ", None, []),
    ],
)  # fmt: skip
def test_only_whole_calls_of_offered_functions_are_calls(text: str, outside: str | None, called: Any) -> None:
    functions = (Function(name="a"), Function(name="b"))
    said, calls = Offer(functions).read(text, "stop")
    functions_called = [tuple(call["function"].values()) for call in calls]
    assert (said, functions_called) == (text if outside is None else outside, called)
    assert Offer(functions, most=1).read(text, "stop")[1][1:] == []


def test_the_model_answers_or_calls(served: Running, writes: Any) -> None:
    writes(f"{TALK}\n{CALL}")
    both = ask(served)
    [one] = both.message.tool_calls
    assert both.finish_reason == "tool_calls" and len(both.message.content) == 150
    assert one.function.name == "look" and len(json.loads(one.function.arguments)["city"]) == 90
    chunks = [chunk.choices[0] for chunk in ask(served, stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks).rstrip() == both.message.content
    assert len(chunks) > 20, "text is sent as it comes"
    calls = [each for chunk in chunks for each in chunk.delta.tool_calls or ()]
    assert [(each.index, each.function.arguments) for each in calls] == [(0, one.function.arguments)]
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["tool_calls"]
    cut = ask(served, max_tokens=100)
    assert cut.finish_reason == "length" and not cut.message.tool_calls and '"look"' in cut.message.content
    writes(CALL)
    assert ask(served).message.content is None
    writes(TALK)
    plain = ask(served, tool_choice="auto", parallel_tool_calls=False)
    assert (plain.finish_reason, plain.message.tool_calls) == ("stop", None) and len(plain.message.content) == 150


def test_calls_are_spared_where_the_operator_says_so(served: Running, writes: Any) -> None:
    writes(f"{TALK}\n{CALL}")
    spared, marked = ask(served, "spared"), ask(served, "one")
    served.idle()
    assert served.log.begun[-2].policy.endswith("; calls unmarked") and served.log.closed[-2].marked
    for found, call in ((spared, False), (marked, True)):
        assert p_value(found.message.content, KEY) < 1e-6
        assert (p_value(found.message.tool_calls[0].function.arguments, KEY) < 1e-3) is call
    wanted = ask(served, "spared", extra_body={"watermark": True})
    assert p_value(wanted.message.tool_calls[0].function.arguments, KEY) < 1e-3


def test_a_text_of_spared_calls_is_neither_tested_nor_refused(served: Running, writes: Any) -> None:
    """With `strict`, everything else of its length must be detected."""
    writes(f"[a-z]{{9}}\n{CALL}")
    assert ask(served, "strict").finish_reason == "tool_calls"
    served.idle()
    closed = served.log.closed[-1]
    assert closed.tokens > 100 and closed.detected is None and closed.attempts == 1
    writes('<tool_call>\n\\{"name": "look", "arguments": \\{"city": "[a-z]{150}')  # never whole: no call
    with pytest.raises(openai.InternalServerError, match="no attempt gave a detectable text"):
        ask(served, "strict", temperature=1)
    assert ask(served, "all").message.content.startswith("<tool_call>"), "marked as a text, and found"


def test_a_thought_does_not_make_a_short_answer_one_that_must_be_detected(served: Running, writes: Any) -> None:
    writes("<think>a{150}</think>a{30}")  # nothing that the mark could choose
    assert ask(served, "thinks").message.content == f"<think>{'a' * 150}</think>{'a' * 30}"
    served.idle()
    assert served.log.closed[-1].tokens > 100 and served.log.closed[-1].detected is False
    writes("<think>a{10}</think>a{150}")
    with pytest.raises(openai.InternalServerError, match="no attempt gave a detectable text"):
        ask(served, "thinks")


@pytest.mark.parametrize("token", ["(.)", "(<.*?>)"])
def test_sections_end_with_the_call(token: str) -> None:
    """Behind each token, a letter or a sign: whether the next one is unmarked. A call in a thought ends with it."""
    tokenizer = copy.deepcopy(parts()[1])
    tokenizer.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    for thinks, text, unmarked in (
        (True, "<think>a<tool_call></think>b<tool_call>c</tool_call>d", "a<tool_call></think>c</tool_call>"),
        (False, "<think>a</think><tool_call>c</tool_call>d", "c</tool_call>"),
        (False, "<think>a<tool_call>b</think>c", "b</think>"),
    ):
        tokens = [each for each in re.split(token, text) if each]
        following, found = Thinking(tokenizer, [], thinks=thinks, calls=True), ""
        ids = [tokenizer(each, add_special_tokens=False)["input_ids"][0] for each in tokens]
        for place in range(1, len(ids)):
            found += tokens[place] if following.after(ids[:place]) else ""
        assert found == unmarked


@pytest.mark.parametrize(
    ("prompt", "text", "untested"),
    [("", "<think>a</think>", True), ("<think>", "a</think>", True), ("", "the sky is</think>", False),
     ("", "<think>a</think>the sky is</think>", False)],
)  # fmt: skip
def test_only_the_first_thought_counts_for_nothing(prompt: str, text: str, untested: bool) -> None:
    call, tokenizer = '<tool_call>{"name": "a", "arguments": {}}', parts()[1]
    ids, before = (tokenizer(each, add_special_tokens=False)["input_ids"] for each in (text + call, prompt))
    sequence: Any = SimpleNamespace(visible=ids, request=SimpleNamespace(ids=before))
    assert Offer((Function(name="a"),)).suffices(StopStrings(tokenizer, None), 3, True, sequence) is untested


def test_responses_name_what_is_served(served: Running) -> None:
    with pytest.raises(openai.NotFoundError, match="no such path; use /v1/chat/completions"):
        served.client().responses.create(model=NAME, input="x")
