"""What clients send: what is accepted, and what is refused in OpenAI's shape."""

import http.client
import json
from typing import Any

import pytest
from pydantic import ValidationError
from serve.serving import NAME, Running, alone
from serve.test_answering import post

from caw.serve.requests import ChatRequest, CompletionRequest

PLAIN = {"model": NAME, "prompt": "the sky", "max_tokens": 4, "temperature": 0}
CHAT = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}
NEUTRAL = {
    "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "top_k": -1, "repetition_penalty": 1.0,
    "min_p": 0, "best_of": 1, "echo": False, "suffix": None, "user": "somebody", "tools": [], "tool_choice": "none",
    "response_format": {"type": "text"}, "metadata": {"a": "b"}, "stream_options": None, "something_new": None,
    "n": 1, "stop": [], "logprobs": None, "service_tier": "auto", "parallel_tool_calls": True,
}  # fmt: skip


def ask(served: Running, body: Any, path: str = "/v1/completions") -> tuple[int, dict[str, Any]]:
    return post(served.port, body if isinstance(body, bytes) else json.dumps(body).encode(), path)


def test_parameters_that_are_not_served_may_be_neutral(served: Running) -> None:
    status, answer = ask(served, {**PLAIN, **NEUTRAL, "max_tokens": 4.0, "n": 1.0})
    assert status == 200 and answer["choices"][0]["text"] == alone("the sky", max_new_tokens=4)[0]
    status, answer = ask(served, {**CHAT, **NEUTRAL, "messages": [{"role": "developer", "content": "hi", "name": "x"}]},
                         "/v1/chat/completions")  # fmt: skip
    assert status == 200 and answer["choices"][0]["finish_reason"] == "length"


def test_bad_values_are_refused(served: Running) -> None:
    for change, parameter, said in (
        ({"presence_penalty": 2.5}, "presence_penalty", "less than or equal to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than"),
        ({"min_p": 1.5}, "min_p", "less than or equal to 1"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "token ids to numbers in [-100, 100]"),
        ({"logit_bias": {"999999999": 1}}, "logit_bias", "vocabulary"),
        ({"do_sample": True}, "do_sample", "requires a temperature above 0"),
        ({"enable_thinking": False}, "enable_thinking", "is unknown by this server; use chat_template_kwargs"),
        ({"think": False}, "think", "is unknown by this server; use chat_template_kwargs"),
        ({"add_special_tokens": False}, "add_special_tokens", "is not supported"),
        ({"another": 0}, "another", "is unknown"), ({"echo": True}, "echo", "is not supported"),
        ({"tool_choice": "required"}, "tool_choice", "is not supported"),
        ({"tools": [{"type": "function"}]}, "tools", "is not supported"),
        ({"something": "x"}, "something", "is unknown"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"temperature": "1"}, "temperature", "number"), ({"top_p": 0}, "top_p", "greater than 0"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": True}, "max_tokens", "valid integer"),
        ({"n": 100}, "n", "may ask for at most 16 texts, got 100"),
        ({"max_tokens": 500}, "prompt", "a text may have at most 256 tokens in total"),
        ({"seed": 1 << 64}, "seed", "less than"), ({"stop": ["a"] * 17}, "stop", "stop must be up to 16"),
        ({"stop": [""]}, "stop", "stop must be"), ({"prompt": ""}, "prompt", "at least one token"),
        ({"prompt": [5, 10**9]}, "prompt", "token ids must be below"),
        ({"prompt": [-1]}, "prompt", "token ids must be"), ({"logprobs": 6}, "logprobs", "less than or equal to 5"),
        ({"prompt": ["x"] * 17}, "n", "may ask for at most 16 texts, got 17"),
        ({"stop": "\ud800"}, "stop", "valid Unicode"), ({"prompt": "half \ud800 pair"}, None, "valid Unicode"),
    ):  # fmt: skip
        begun = len(served.log.begun)
        status, answer = ask(served, {**PLAIN, **change})
        error = answer["error"]
        assert status == 400 and error["type"] == "invalid_request_error" and said in error["message"]
        assert parameter is None or error["param"].split(".")[0] == parameter
        assert len(served.log.begun) == begun


def test_bad_chats_are_refused(served: Running) -> None:
    for change, said in (
        ({"messages": []}, "at least 1 item"), ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, "messages.0.tool_calls"),
        ({"top_logprobs": 3}, "top_logprobs requires logprobs"), ({"logprobs": 3}, "logprobs"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ):  # fmt: skip
        status, answer = ask(served, {**CHAT, **change}, "/v1/chat/completions")
        assert status == 400 and said in answer["error"]["message"]


def test_malformed_bodies_are_refused(served: Running) -> None:
    for body in (
        b"", b"{", b'"text"', b"{" * 100_000, b"[" * 100_000 + b"]" * 100_000, b"\xff\xfe",
        b'{"model":"tiny","prompt":"x","temperature":NaN}',
        b'{"model":"tiny","prompt":"x","seed":' + b"9" * 5000 + b"}",
    ):  # fmt: skip
        status, answer = ask(served, body)
        assert (
            status == 400
            and answer["error"]["type"] == "invalid_request_error"
            and len(answer["error"]["message"]) < 600
        )


def test_a_list_is_looked_at_up_to_its_first_error() -> None:
    """A megabyte of nulls had three errors for each, which held up all clients for twelve seconds."""
    for model, change in (
        (CompletionRequest, {"prompt": [None] * 5000}), (CompletionRequest, {"prompt": [1, "a"] * 5000}),
        (CompletionRequest, {"prompt": [[]] * 5000}), (CompletionRequest, {"prompt": [[None] * 5000]}),
        (CompletionRequest, {"prompt": "x", "stop": [5] * 5000}), (ChatRequest, {"messages": [5] * 5000}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "image"}] * 5000}]}),
    ):  # fmt: skip
        with pytest.raises(ValidationError) as caught:
            model.model_validate({"model": NAME, **change})
        assert caught.value.error_count() <= 6


def test_many_parameters_are_refused_and_strangers_before_their_bodies_are_looked_into(served: Running) -> None:
    others = {f"p{number}": None for number in range(300)}
    status, answer = ask(served, {**PLAIN, **others})
    assert status == 400 and "256 unsupported parameters" in answer["error"]["message"]
    assert post(served.port, b'{"prompt":[5,"x"]}', authorization="Bearer stranger")[0] == 401
    status, answer = ask(served, b'{"model": "tiny" x}')
    assert status == 400 and answer["error"]["param"] is None


def test_other_paths_are_unknown(served: Running) -> None:
    for path in (
        "/v1/completions/", "//v1/completions", "/docs", "/openapi.json", "/v1/embeddings",
        "/v1/completions/../../etc/passwd",
    ):  # fmt: skip
        status, answer = ask(served, PLAIN, path)
        assert status == 404 and answer["error"]["type"] == "not_found_error"


def test_other_methods_are_told_which_there_are(served: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    connection.request("TRACE", "/v1/completions")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["allow"]) == (405, "POST") and b'"message"' in answer.read()


def test_another_model_is_unknown(served: Running) -> None:
    status, answer = ask(served, {**PLAIN, "model": "x" * 1000})
    assert status == 404 and answer["error"]["code"] == "model_not_found" and len(answer["error"]["message"]) < 200
