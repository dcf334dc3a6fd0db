"""Whole bodies as the packages write them, from their sources: each is answered, or refused by one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from serve.serving import NAME, Running
from serve.test_messages import HI, PATH, SAID, text
from serve.test_requests import ask

MODEL: dict[str, Any] = {"model": NAME, "max_tokens": 4}
CHAT: dict[str, Any] = {**MODEL, "messages": [HI]}
NEWER: dict[str, Any] = {"model": NAME, "messages": [HI], "max_completion_tokens": 4}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
LLAMA_TOOL: dict[str, Any] = {**TOOL, "function": {**TOOL["function"], "description": "look", "strict": False}}
IMAGE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "auto"}}
SOUND: dict[str, Any] = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
FILE: dict[str, Any] = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}}

# names: package, version, and what of it writes the body
ANSWERED: dict[str, dict[str, Any]] = {
    "openai 3.57, chat": {**CHAT, "metadata": {"a": "b"}, "store": False, "user": "x", "safety_identifier": "y"},
    "openai 3.57, prompt caches": {**CHAT, "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
    "lm-eval 0.4.13, local-chat-completions": {
        "messages": [{**HI, "type": "text"}], "model": NAME, "max_tokens": 4, "temperature": 0.0,
        "stop": ["\n\n", "Question:"], "seed": 1234,
    },
    "lm-eval 0.4.13, openai-chat-completions": {
        "messages": [{**HI, "type": "text"}], "model": NAME, "max_completion_tokens": 4, "temperature": 0,
        "stop": ["<|endoftext|>"], "seed": 1234,
    },
    "lm-eval 0.4.13, no stop strings": {**CHAT, "temperature": 0, "stop": [], "seed": 1234},
    "LiteLLM 1.110, hosted_vllm": {**CHAT, "temperature": 0.2, "top_p": 0.9, "parallel_tool_calls": True, "n": 1},
    "langchain-openai 1.7, ChatOpenAI": {**NEWER, "stream": False, "temperature": 0.7, "stop": ["x"], "n": 1},
    "langchain-openai 1.7, caches and tier": {
        **NEWER, "stream": False, "prompt_cache_options": {"ttl": "30m"}, "service_tier": "auto", "store": False,
    },
    "langchain-openai 1.7, bind_tools with a choice": {**NEWER, "stream": False, "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "look"}}},
    "llama-index-llms-openai 0.8, chat": {**CHAT, "stream": False, "temperature": 0.1},
    "llama-index-llms-openai 0.8, log-probabilities": {**CHAT, "temperature": 0.1, "logprobs": True, "top_logprobs": 0},
    "llama-index-llms-openai 0.8, a tool that is required": {**CHAT, "temperature": 0.1, "tools": [LLAMA_TOOL],
        "tool_choice": "required", "parallel_tool_calls": False},
    "Open WebUI 0.12, pipelines": {**CHAT, "stream": False,
        "user": {"name": "a", "id": "b", "email": "a@example.org", "role": "user"}},
    "Open WebUI 0.12, advanced parameters": {
        **CHAT, "stream": False, "temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 0,
        "frequency_penalty": 0.1, "presence_penalty": 0.1, "logit_bias": {"9": -5}, "stop": ["x"],
    },
}  # fmt: skip
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "openai 3.57, an image": (
        {**CHAT, "messages": [{**HI, "content": [*text("look"), IMAGE]}]}, "content parts of type 'image_url' are not "
        "supported"),
    "openai 3.57, audio": (
        {**CHAT, "messages": [{**HI, "content": [SOUND]}]}, "content parts of type 'input_audio' are not supported"),
    "openai 3.57, audio asked for": (
        {**CHAT, "modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}, "is not supported"),
    "openai 3.57, a prediction": (
        {**CHAT, "prediction": {"type": "content", "content": "a"}}, "'prediction' is not supported"),
    "langchain-openai 1.7, a file": (
        {**NEWER, "messages": [{**HI, "content": [FILE]}]}, "content parts of type 'file' are not supported"),
    "langchain-openai 1.7, effort": ({**NEWER, "reasoning_effort": "low"}, "'reasoning_effort' is not supported"),
    "llama-index-llms-openai 0.8, tools it may use": (
        {**CHAT, "tools": [LLAMA_TOOL], "tool_choice": "auto", "parallel_tool_calls": True}, "'auto' is not supported"),
    "LiteLLM 1.110, web search": (
        {**CHAT, "web_search_options": {}}, "'web_search_options' is not supported"),
    "Open WebUI 0.12, Continue where the provider is llama.cpp, without a continuation's token": (
        {**CHAT, "messages": [HI, SAID], "continue_final_message": True, "add_generation_prompt": False},
        "'continue_final_message' is not supported"),
    "Open WebUI 0.12, a parameter of Ollama's": ({**CHAT, "num_ctx": 2048}, "'num_ctx' is unknown"),
    "Open WebUI 0.12, Ollama's thinking": ({**CHAT, "think": True}, "use chat_template_kwargs"),
}  # fmt: skip


@pytest.mark.parametrize("client", ANSWERED)
def test_bodies_that_are_answered(served: Running, client: str) -> None:
    """Open WebUI's user is an object; `prompt_cache_retention` and `prompt_cache_options` were refused as unknown."""
    status, answer = ask(served, ANSWERED[client], PATH)
    assert status == 200 and len(answer["choices"]) == 1, answer


@pytest.mark.parametrize("client", REFUSED)
def test_bodies_that_are_refused(served: Running, client: str) -> None:
    body, said = REFUSED[client]
    status, answer = ask(served, body, PATH)
    message = answer["error"]["message"]
    assert status == 400 and said in message and "\n" not in message and len(message) < 200


def test_completions_of_lm_eval(served: Running) -> None:
    """0.4.13: local-completions writes; what scores answers asks for log-probabilities of the prompt."""
    body: dict[str, Any] = {"prompt": "hi", **MODEL, "temperature": 0, "stop": ["\n\n"], "seed": 1234}
    assert ask(served, body)[0] == 200
    status, answer = ask(served, {**body, "max_tokens": 1, "logprobs": 1, "echo": True, "stop": []})
    assert status == 400 and answer["error"]["message"].startswith("'echo' is not supported by this server")
