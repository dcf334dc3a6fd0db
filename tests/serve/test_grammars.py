"""JSON mode: texts that are JSON of their schema, marked where they may go on in several ways."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
import torch
from decoding.drafts.guessing import Knowing
from detectable.noise import let_all_pass
from serve.serving import DIRECTORY, KEY, MARK, NAME, OTHER, Directory, Running, alone, parts, running

import caw
from caw import ops
from caw.decoding.drafts.proposer import Proposer
from caw.serve.contracts import MarkKey, MarkRules, Tenant
from caw.serve.grammars import GrammarRules, Grammars

pytest.importorskip("llguidance")
SMALL = {
    "type": "object", "additionalProperties": False, "required": ["a", "n"],
    "properties": {"a": {"type": "string", "maxLength": 20}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
}  # fmt: skip
LONG = {
    "type": "object", "additionalProperties": False, "required": ["a"],
    "properties": {"a": {"type": "string", "pattern": "^[a-z ]{200}$"}},
}  # fmt: skip


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def said(served: Running, schema: Any, *, key: str = "one", **settings: Any) -> list[str]:
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 230, "response_format": form(schema), **settings}
    messages: Any = [{"role": "user", "content": "a text about the sky"}]
    answer = served.client(key).chat.completions.create(model=NAME, messages=messages, **asked)
    if not asked.get("stream"):
        assert {choice.finish_reason for choice in answer.choices} == {"stop"}
        return [str(choice.message.content) for choice in answer.choices]
    return ["".join(chunk.choices[0].delta.content or "" for chunk in answer)]


def p_value(text: str, key: Any) -> float:
    return caw.detect(text, parts()[1], MARK.with_key(key)).p_value


def test_texts_are_json_and_those_beside_them_do_not_change(served: Running) -> None:
    [plain] = alone("the sky", max_new_tokens=150)
    with ThreadPoolExecutor(4) as pool:
        beside = pool.submit(lambda: served.complete("the sky", max_tokens=150).choices[0].text)
        greedy, streamed = (pool.submit(said, served, SMALL, stream=stream) for stream in (False, True))
        sampled = pool.submit(said, served, SMALL, temperature=1, seed=5, n=4)
    assert beside.result() == plain and greedy.result() == streamed.result()
    texts = [*greedy.result(), *sampled.result()]
    for found in map(json.loads, texts):
        assert set(found) == {"a", "n"} and len(found["a"]) <= 20 and 0 <= found["n"] <= 99
    assert len(set(texts)) > 2


def test_marks_choose_among_what_is_allowed(served: Running) -> None:
    [text] = said(served, LONG)
    assert len(json.loads(text)["a"]) == 200
    assert p_value(text, KEY) < 1e-9 and p_value(text, OTHER) > 1e-3
    assert served.log.begun[-1].unmarked == ""


def test_it_is_exempt_only_where_the_operator_says_so() -> None:
    rules = {"exempt": MarkRules(exempt_json=True), "found": MarkRules(detectable_at=1e-6, exempt_thinking=True)}
    tenants = {name: Tenant(name, MarkKey("k1", KEY), rule) for name, rule in rules.items()}
    with running(directory=Directory({**DIRECTORY.tenants, **tenants})) as served:
        assert p_value(said(served, LONG, key="exempt")[0], KEY) > 1e-3
        assert served.log.begun[-1].unmarked == "JSON mode is exempted"
        text = said(served, LONG, key="found")[0]
        assert json.loads(text) and p_value(text, KEY) < 1e-6 and "thinking" not in served.log.begun[-1].policy
        served.idle()
        assert served.log.closed[-1].detected


def test_a_guard_keeps_to_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    let_all_pass(monkeypatch)
    guard, rules = caw.Guard(lambda old, new: True, rejoin=2, horizon=8, loss=99), MarkRules(detectable_at=0.45)
    with running(rules=rules, guard=guard) as server:
        [text] = said(server, LONG)
        server.idle()
        tested = server.log.closed[-1].tested
    assert re.fullmatch("[a-z ]{200}", json.loads(text)["a"])
    assert tested is not None and tested["kept"] and tested["detected"] and tested["changes"] and tested["rollouts"]


def test_what_a_schema_says_of_changes() -> None:
    read = parts()[1]
    grammars = Grammars(read, parts()[0].config.vocab_size, (read.eos_token_id,))
    rules = GrammarRules(grammars.compiled(SMALL))
    text = read('{"a": "he", "n": 5}')["input_ids"]
    place = next(place for place, token in enumerate(text) if read.decode([token]) == "5")
    [seven], [word], [brace] = (read(each)["input_ids"] for each in ("7", "x", "}"))
    changes = [(place, seven), (0, word), (place, word), (place, brace), (0, text[0]), (len(text) - 1, seven)]
    assert rules.allowed(text, changes) == [True, False, False, False, True, True]
    assert rules.keeps(text, ended=True) and rules.keeps([*text[:place], seven, *text[place + 1 :]], ended=True)
    assert rules.keeps(text[:-1], ended=False) and not rules.keeps(text[:-1], ended=True)
    assert not rules.keeps([*text, brace], ended=True) and not rules.keeps([*text[:2], brace], ended=False)


@pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")
def test_drafts_change_no_text_of_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = [
        {"prompt": f"text {n}", "max_tokens": 230, "temperature": (0, 1)[n % 2], "seed": n,
         "extra_body": {"response_format": form((LONG, SMALL)[n > 1])}} for n in range(4)
    ]  # fmt: skip

    def texts(drafts: bool) -> list[str]:
        with running(batch=3, drafts=drafts) as served, ThreadPoolExecutor(4) as pool:
            return [answer.choices[0].text for answer in pool.map(lambda one: served.complete(**one), asked)]

    expected, read, right = texts(False), parts()[1], []
    known = [
        (read(one["prompt"])["input_ids"], read(text)["input_ids"]) for one, text in zip(asked, expected, strict=True)
    ]
    drafter = Knowing(known, ["right", "last wrong", "first wrong", "unknown ids", "too long"])
    monkeypatch.setattr("caw.decoding.steps.NgramDrafter", lambda alone: drafter)
    monkeypatch.setattr(Proposer, "saw", lambda self, trust, drafted, accepted, *_: right.append(accepted))
    assert texts(True) == expected
    assert sum(right) > 40
    for text in expected[2:]:
        assert set(json.loads(text)) == {"a", "n"}


def test_any_object(served: Running) -> None:
    asked = {"response_format": {"type": "json_object"}}
    choices = served.complete("the sky", max_tokens=60, temperature=1, seed=3, n=16, extra_body=asked).choices
    whole = [json.loads(choice.text) for choice in choices if choice.finish_reason == "stop"]
    assert whole and all(isinstance(found, dict) for found in whole)
    assert all(choice.text.lstrip().startswith("{") for choice in choices)


def test_schemas_that_cannot_be_kept_to_are_refused(served: Running) -> None:
    """Nothing is fetched for them, no rule of this server is lifted by them, and none takes long."""
    for response_format, said in (
        ({"type": "json_schema"}, "must have a json_schema"), ({"type": "json_object", "json_schema": {}}, "fix it"),
        ({"type": "grammar"}, "json_object"), ({"type": "json_schema", "json_schema": {"regex": "x"}}, "not permitted"),
        (form({"type": "nothing"}), "unsupported schema: 'Invalid type"), (form(False), "unsupported schema:"),
        (form({"not": {}}), "Unimplemented keys"), (form({"$ref": "file:///etc/passwd"}), "unsupported schema:"),
        (form({"$ref": "http://127.0.0.1:1/x"}), "unsupported schema:"),
        (form({"x-guidance": {"lenient": True}, "not": {}}), "Unimplemented keys"),
        (form({"type": "string", "pattern": "(" * 200 + "a" + "){9}" * 200}), "unsupported schema:"),
        (form({"enum": ["x" * 70_000]}), "a schema may have at most 65536 characters"),
        (form({"type": "string", "pattern": "("}), "unsupported schema:"),
    ):  # fmt: skip
        begun = len(served.log.begun)
        with pytest.raises(openai.BadRequestError) as caught:
            served.complete("x", extra_body={"response_format": response_format})
        assert said in str(caught.value) and len(str(caught.value)) < 500 and len(served.log.begun) == begun


def test_a_text_that_cannot_go_on_fails_alone(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from caw.serve import grammars

    monkeypatch.setattr(grammars, "LIMITS", {**grammars.LIMITS, "step_lexer_fuel": 1, "step_max_items": 1})
    with running() as other, pytest.raises(openai.BadRequestError, match="schema exceeds the server's limits"):
        said(other, {"type": "array", "items": {"enum": ["aa", "ab", "bb", "ba"] * 50}, "minItems": 9})
    whole = grammars.Grammar.allowed
    monkeypatch.setattr(
        grammars.Grammar, "allowed", lambda self: torch.roll(whole(self), 1)
    )  # others than may come next
    with pytest.raises(openai.InternalServerError, match="the text left its schema because of a server error"):
        said(served, SMALL)
    assert served.complete("the sky", max_tokens=20).choices[0].text == alone("the sky", max_new_tokens=20)[0]


def test_without_its_package_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with running() as served, pytest.raises(openai.BadRequestError, match="the package llguidance"):
        served.complete("x", extra_body={"response_format": {"type": "json_object"}})
