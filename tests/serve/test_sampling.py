"""Parameters of sampling: what a request asks for is what the library makes of the same numbers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from serve.serving import NAME, Running, alone, parts, running
from serve.test_answering import post

from caw.serve.requests import CompletionRequest

ASKED: list[dict[str, Any]] = [
    {"repetition_penalty": 1.5}, {"presence_penalty": 1.5, "frequency_penalty": -0.5}, {},
    {"logit_bias": {"5": 4, "70": -100}}, {"temperature": 0.9, "seed": 3, "min_p": 0.2},
    {"temperature": 1.2, "seed": 4, "top_k": 3}, {"do_sample": False, "temperature": 0.8},
    {"temperature": 0.8, "seed": 5, "top_k": -1, "repetition_penalty": 1.2},
]  # fmt: skip


def ask(served: Running, path: str = "/v1/completions", **asked: Any) -> tuple[int, dict[str, Any]]:
    return post(served.port, json.dumps({"model": NAME, **asked}).encode(), path)


def as_library(asked: dict[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in asked.items() if name != "do_sample"}
    own["do_sample"] = asked.get("do_sample", asked.get("temperature", 0) > 0)
    if "logit_bias" in own:
        own["logit_bias"] = {int(token): bias for token, bias in own["logit_bias"].items()}
    return own | ({"top_k": 0} if own.get("top_k") == -1 else {})


@pytest.mark.parametrize("asked", ASKED)
def test_texts_are_those_of_the_library(served: Running, asked: dict[str, Any]) -> None:
    status, answer = ask(served, prompt="the sky", max_tokens=8, **{"temperature": 0, **asked})
    assert status == 200
    assert answer["choices"][0]["text"] == alone("the sky", max_new_tokens=8, **as_library(asked))[0]


def test_do_sample_false_is_greedy_without_a_temperature(served: Running) -> None:
    texts = {ask(served, prompt="the sky", max_tokens=8, do_sample=False)[1]["choices"][0]["text"] for _ in range(3)}
    assert texts == {alone("the sky", max_new_tokens=8)[0]}


@pytest.fixture
def thinking_template(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tokenizer = parts()[1]
    ends = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    monkeypatch.setattr(tokenizer, "chat_template", tokenizer.chat_template + ends)
    yield


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}


def test_variables_of_the_template_reach_it(served: Running, thinking_template: None) -> None:
    lengths = {}
    for thinks in (True, False, None):
        given = {} if thinks is None else {"chat_template_kwargs": {"enable_thinking": thinks}}
        status, answer = ask(served, "/v1/chat/completions", **CHAT, **given)
        assert status == 200
        lengths[thinks] = answer["usage"]["prompt_tokens"]
    assert lengths[True] == lengths[None] < lengths[False]


def test_a_variable_that_changes_nothing_is_refused_by_name(served: Running) -> None:
    for variables, said in (
        ({"enable_thinking": False}, "does not read a variable 'enable_thinking'"),
        ({"chat_template": "{{ 1 }}"}, "'chat_template' of the chat template is set by the server"),
        ({"add_generation_prompt": False}, "is set by the server"),
        ({"messages": []}, "is set by the server"),
        ({"m": [1]}, "must be true, false, a number or up to 1024 characters"),
        ({"x y": 1}, "does not read a variable"),
    ):
        status, answer = ask(served, "/v1/chat/completions", **CHAT, chat_template_kwargs=variables)
        assert status == 400 and said in answer["error"]["message"]
        assert answer["error"]["param"] == "chat_template_kwargs"


def test_plain_completions_have_no_template(served: Running) -> None:
    status, answer = ask(served, prompt="a", chat_template_kwargs={"enable_thinking": False})
    assert status == 400 and "chat_template_kwargs" in answer["error"]["message"]


def test_a_chats_own_neutral_values(served: Running) -> None:
    assert ask(served, "/v1/chat/completions", **CHAT, add_special_tokens=False)[0] == 200
    assert ask(served, "/v1/chat/completions", **CHAT, add_special_tokens=True)[0] == 400


def test_what_a_request_says_wins_over_what_the_model_suggests() -> None:
    for asked, defaults, expected in (
        ({}, {}, {"do_sample": True, "temperature": 1.0}),
        ({}, {"do_sample": True, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}),
        ({"temperature": 0.3}, {"temperature": 0.6, "top_p": 0.9}, {"temperature": 0.3, "top_p": 0.9}),
        ({"temperature": 0}, {"do_sample": True, "min_p": 0.1}, {"do_sample": False, "min_p": 0.1}),
        ({}, {"do_sample": False}, {"do_sample": False}),
        ({"temperature": 0.5}, {"do_sample": False}, {"do_sample": True, "temperature": 0.5}),
        ({"do_sample": True}, {"do_sample": False}, {"do_sample": True, "temperature": 1.0}),
    ):  # fmt: skip
        made = CompletionRequest.model_validate({"model": NAME, "prompt": "x", **asked}).sampling(defaults)
        assert expected.items() <= made.items()


def test_the_models_suggestion_is_the_default_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parts()[0].generation_config
    monkeypatch.setattr(config, "do_sample", True)
    monkeypatch.setattr(config, "temperature", 0.5)
    with running(sampling="model") as served:
        assert served.service.planned.sampling == {"do_sample": True, "temperature": 0.5}
        text = ask(served, prompt="the sky", max_tokens=8, seed=7)[1]["choices"][0]["text"]
    assert text == alone("the sky", max_new_tokens=8, do_sample=True, temperature=0.5, seed=7)[0]


@pytest.mark.parametrize("one_token", [{"top_k": 1}, {"temperature": 0.01}, {"top_p": 0.01}, {"min_p": 1.0}])
def test_what_leaves_the_sampler_one_token_is_greedy(one_token: dict[str, Any]) -> None:
    """A race would have nothing to choose among: text without a mark, for the asking."""
    asked = CompletionRequest.model_validate({"model": NAME, "prompt": "x", "temperature": 1.0, "seed": 1, **one_token})
    sampling = asked.sampling({})
    assert sampling["do_sample"] is False and sampling["temperature"] == 1.0
    near = {name: 2 * value if name != "min_p" else 0.9 for name, value in one_token.items()}
    drawn = CompletionRequest.model_validate({"model": NAME, "prompt": "x", "temperature": 1.0, "seed": 1, **near})
    assert drawn.sampling({})["do_sample"] is True
    assert asked.sampling({"top_p": 0.5})["do_sample"] is False
