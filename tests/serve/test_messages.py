"""Requests as clients write them, from their sources: what is accepted, and what is refused by its name.

openai 3.57, lm-eval 0.4.13, LiteLLM 1.110, langchain-openai 1.7, llama-index-llms-openai 0.8 and Open WebUI 0.6.
"""

import http.client
import json
from typing import Any

import pytest
from serve.serving import NAME, Running, chat_ids, parts
from serve.test_requests import CHAT, PLAIN, ask

PATH = "/v1/chat/completions"
HI: dict[str, Any] = {"role": "user", "content": "hi"}
SAID: dict[str, Any] = {"role": "assistant", "content": "a"}
CALL: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"day": 1}'}}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
CALLS_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content or '' }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{% endfor %}<assistant>"
)
EPHEMERAL = {"type": "ephemeral"}


def text(said: str, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": said, **more}]


def refused(served: Running, change: dict[str, Any], path: str = PATH) -> dict[str, Any]:
    status, answer = ask(served, {**(CHAT if path == PATH else PLAIN), **change}, path)
    assert status == 400, answer
    error: dict[str, Any] = answer["error"]
    return error


# what each client adds to the conversation "hi", "a", "hi"
SHAPES: dict[str, list[dict[str, Any]]] = {
    "lm-eval": [{**HI, "type": "text"}, {**SAID, "type": "text"}, {**HI, "type": "text"}],
    "openai, a message dumped whole": [
        HI, {**SAID, "refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}, HI,
    ],
    "openai, parts in every message": [{**one, "content": text(one["content"])} for one in (HI, SAID, HI)],
    "openai, names and breakpoints": [
        {**HI, "name": "someone"}, {**SAID, "name": "model"},
        {**HI, "content": text("hi", prompt_cache_breakpoint={"mode": "explicit"})},
    ],
    "LiteLLM": [
        {**HI, "cache_control": EPHEMERAL}, {
            **SAID, "tool_calls": None, "function_call": None, "provider_specific_fields": {"refusal": None},
            "reasoning_content": None, "thinking_blocks": [], "images": [],
        }, {**HI, "content": text("hi", cache_control=EPHEMERAL)},
    ],
    "LangChain": [HI, {**SAID, "name": None, "refusal": None}, {**HI, "content": text("h") + text("i")}],
    "LlamaIndex": [HI, SAID, {**HI, "content": text("h") + text("i")}],
    "Open WebUI": [{**HI, "id": "8c6f"}, {**SAID, "reasoning_content": "hm"}, {**HI, "content": text("hi")}],
    "parts named as the Responses interface does": [
        {**HI, "type": "message", "content": [{"type": "input_text", "text": "hi"}]},
        {**SAID, "content": [{"type": "output_text", "text": "a", "annotations": []}]}, HI,
    ],
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_conversation_is_the_same_in_every_clients_shape(served: Running, shape: str) -> None:
    plain = ask(served, {**CHAT, "messages": [HI, SAID, HI]}, PATH)[1]
    status, answer = ask(served, {**CHAT, "messages": SHAPES[shape]}, PATH)
    assert status == 200, answer
    assert answer["choices"] == plain["choices"] and answer["usage"] == plain["usage"]
    assert plain["usage"]["prompt_tokens"] == len(chat_ids(HI, SAID, HI))


PARAMETERS: dict[str, dict[str, Any]] = {
    "openai": {"n": 1, "stop": None, "user": "x", "store": False, "metadata": {"a": "b"}, "service_tier": "auto"},
    "openai, streamed": {"stream": True, "stream_options": {"include_usage": True}},
    "openai, logprobs": {"logprobs": True, "top_logprobs": 3, "max_completion_tokens": 4, "max_tokens": None},
    "lm-eval": {"max_tokens": 4, "temperature": 0, "stop": ["\n\n", "Question:"], "seed": 1234},
    "LiteLLM": {"max_tokens": 4, "temperature": 0, "parallel_tool_calls": True, "frequency_penalty": 0},
    "LangChain": {"stream": False, "temperature": 0.0, "max_completion_tokens": 4, "max_tokens": None},
    "LlamaIndex": {"temperature": 0.0, "max_tokens": 4, "stream": True},
    "openai, caches": {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "y"},
    "LangChain, caches": {"prompt_cache_options": {"ttl": "30m"}, "service_tier": "auto"},
    "Open WebUI, pipelines": {"user": {"name": "a", "id": "b", "role": "user"}, "top_k": 40, "min_p": 0.05},
    "Open WebUI": {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 4, "seed": 0},
}


@pytest.mark.parametrize("client", PARAMETERS)
def test_parameters_of_every_client(served: Running, client: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    headers = {"content-type": "application/json", "authorization": "Bearer one"}
    connection.request("POST", PATH, json.dumps({**CHAT, **PARAMETERS[client]}), headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    assert not PARAMETERS[client].get("stream") or answer.read().endswith(b"data: [DONE]\n\n")


ECHOES: dict[str, dict[str, Any]] = {
    "whole": {"content": None, "refusal": None, "tool_calls": [CALL]},
    "streamed, with its index": {"content": None, "tool_calls": [{"index": 0, **CALL}]},
    "LangChain": {"content": None, "tool_calls": [dict(sorted(CALL.items()))]},
    "nothing but the call": {"tool_calls": [CALL]},
    "an empty content": {"content": "", "tool_calls": [CALL]},
    "without its type": {"content": None, "tool_calls": [{"id": CALL["id"], "function": CALL["function"]}]},
}  # fmt: skip


@pytest.mark.parametrize("shape", ECHOES)
def test_a_call_comes_back_in_every_shape(served: Running, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts()[1], "chat_template", CALLS_TEMPLATE)
    texts: list[str] = []
    read = served.service.prompts._encode
    monkeypatch.setattr(
        served.service.prompts, "_encode", lambda text, whole: (texts.append(text), read(text, whole=whole))[1]
    )
    messages = [HI, {"role": "assistant", **ECHOES[shape]}, RESULT]
    status, answer = ask(served, {**CHAT, "messages": messages}, PATH)
    assert status == 200, answer
    assert texts == ['<user>hi<assistant>look({"day": 1})<tool>rain<assistant>']


def test_what_a_model_thought_is_given_to_a_template_that_takes_it(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts()[1], "chat_template", CALLS_TEMPLATE)
    for name in ("reasoning_content", "reasoning"):
        messages = [HI, {**SAID, name: "hm"}, HI]
        answer = ask(served, {**CHAT, "messages": messages}, PATH)[1]
        assert answer["usage"]["prompt_tokens"] == len(chat_ids(HI, {**SAID, "content": "hma"}, HI))


def test_what_is_no_text_is_named(served: Running) -> None:
    for kind, part in (
        ("image_url", {"image_url": {"url": "data:image/png;base64,AA"}}), ("image_url", {"image_url": "x"}),
        ("input_image", {"image_url": "x"}), ("input_audio", {"input_audio": {"data": "AA", "format": "wav"}}),
        ("audio_url", {"audio_url": {"url": "x"}}), ("video_url", {"video_url": {"url": "x"}}),
        ("file", {"file": {"file_id": "f"}}), ("input_file", {"file_id": "f"}), ("document", {"source": {}}),
        ("image", {"source": {}}), ("refusal", {"refusal": "no"}), ("thinking", {"thinking": "x"}),
    ):  # fmt: skip
        for content in ([{"type": kind, **part}], [*text("what is this?"), {"type": kind, **part}]):
            error = refused(served, {"messages": [HI, SAID, {"role": "user", "content": content}]})
            expected = f"content parts of type '{kind}' are not supported, only text; leave it out"
            assert error["message"] == f"messages.2.content: {expected}" and error["param"] == "messages.2.content"


def test_what_changes_a_text_and_is_not_served_is_named(served: Running) -> None:
    for message, said in (
        ({"content": "x", "audio": {"id": "a"}}, "'audio' of a message is not supported"),
        ({"content": "x", "function_call": {"name": "a"}}, "'function_call' of a message is not supported"),
        ({"content": "x", "refusal": "I will not"}, "'refusal' of a message is not supported"),
        ({"content": "x", "type": "image"}, "'type' of a message is not supported"),
        ({"content": "x", "weather": None}, "'weather' of a message is not supported"),
        ({}, "role 'user' must have content, got none"), ({"content": None}, "must have content, got none"),
        ({"role": "system"}, "role 'system' must have content"),
        ({"role": "assistant"}, "role 'assistant' must have content"),
        ({"content": 5}, "content must be text or a list of parts"),
        ({"content": {"a": 1}}, "must be text or a list"),
        ({"content": ["x"]}, 'a content part must be {"type": "text", "text": ...}'),
        ({"content": [{"text": "x"}]}, "content parts of type no type are not supported"),
        ({"content": [{"type": "text"}]}, "a content part of type 'text' must have a text"),
        ({"content": text("x", weather=1)}, "'weather' of a content part is not supported"),
        ({"role": "assistant", "tool_calls": [{**CALL, "weather": 1}]}, "tool_calls.0.weather"),
        ({"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {}}]}, "tool_calls.0"),
        ({"role": "function", "name": "look", "content": "rain"}, "role: Input should be"),
    ):  # fmt: skip
        assert said in refused(served, {"messages": [{"role": "user", **message}]})["message"]


def test_prompts_that_are_none_are_told_what_a_prompt_is(served: Running) -> None:
    for prompt, found in (
        (["a", [1, 2]], "a list of 2: lists mixed with texts"), ([1, "a"], "a list of 2: numbers mixed with texts"),
        ([1, [2]], "a list of 2: lists mixed with numbers"),
        ([None], "a list of 1: others"), ({"a": 1}, "something else"),
        (5, "something else"), (["x"] * 2000, "a list of 2000: texts"),
        ([1.5, 2], "a list of 2: numbers mixed with others"),
    ):  # fmt: skip
        error = refused(served, {"prompt": prompt}, "/v1/completions")
        assert "a prompt must be text, a list of token ids, or a list of up to 1024 texts" in error["message"]
        assert f"got {found}" in error["message"] and error["param"] == "prompt"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "latin-1"])
def test_other_encodings_than_utf_8_are_refused(served: Running, encoding: str) -> None:
    """Python's reader of JSON guesses UTF-16 and UTF-32; RFC 8259 allows UTF-8 alone."""
    for path, body in (("/v1/completions", PLAIN), (PATH, CHAT), ("/v1/detect", {"text": "x"})):
        status, answer = ask(served, json.dumps({**body, "user": "é"}, ensure_ascii=False).encode(encoding), path)
        assert status == 400 and "JSON in UTF-8" in answer["error"]["message"]
    assert ask(served, json.dumps(PLAIN).encode("utf-8-sig"))[0] == 200


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/v1/models", f"/v1/models/{NAME}"])
def test_what_can_be_asked_can_be_asked_for_its_head(served: Running, path: str) -> None:
    answers = []
    for method in ("GET", "HEAD"):
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
        connection.request(method, path, headers={"authorization": "Bearer one"})
        answer = connection.getresponse()
        answers.append((answer.status, answer.headers["content-type"], len(answer.read())))
    assert answers[0][:2] == answers[1][:2] == (200, answers[0][1]) and answers[0][2] > 0 == answers[1][2]


def test_a_message_that_the_template_drops_is_named(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates leave out roles that they do not know, and the model would answer without them."""
    template = "{% for m in messages %}{% if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
    monkeypatch.setattr(parts()[1], "chat_template", template)
    error = refused(served, {"messages": [HI, SAID, RESULT]})
    assert "leaves out message 2 of role 'tool'" in error["message"]
    monkeypatch.setattr(parts()[1], "chat_template", "{{ raise_exception('no robots') }}")
    assert "the chat template refuses the messages: no robots; mend" in refused(served, {})["message"]
