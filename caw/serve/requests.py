"""What clients send: OpenAI's requests, as far as they are served.

A parameter that is not served is accepted at its neutral value, at which it changes nothing, and refused at others.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field

from caw.io.unicode import is_unicode
from caw.serve.errors import BAD, ApiError
from caw.serve.strict import Strict
from caw.serve.tools import Calls, Tool, ToolChoice, calls_of

MAX_STOPS, MAX_STOP_LENGTH = 16, 1024
MAX_PROMPTS, MAX_PARTS, MAX_OTHERS, MAX_TOOLS = 1024, 4096, 256, 128

T = TypeVar("T")


def _whole(value: Any) -> Any:
    """A whole number that was written with a point, as an integer: in JSON 5.0 is one too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
# a list whose first bad item is the last one looked at: a million of them would take seconds, and each has an error
Quick = Annotated[list[T], Field(fail_fast=True)]
Few = Annotated[list[T], Field(fail_fast=True, max_length=MAX_PROMPTS)]
Parts = Annotated[list[T], Field(fail_fast=True, max_length=MAX_PARTS)]
# parameters that are not served, with the values that change nothing besides None; anything may be said of EVERYTHING
EVERYTHING = object()
NEUTRAL: dict[str, Any] = {
    "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,), "length_penalty": (1,),
    "logit_bias": ({},), "top_k": (0, -1), "min_p": (0,), "best_of": (1,), "echo": (False,), "suffix": ("",),
    "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False), "modalities": (["text"],),
    "use_beam_search": (False,), "skip_special_tokens": (True,), "ignore_eos": (False,), "min_tokens": (0,),
    "stop_token_ids": ([],), "add_generation_prompt": (True,), "verbosity": ("medium",), "n_probs": (0,),
    "service_tier": ("auto", "default"), "store": (False,), "user": EVERYTHING, "safety_identifier": EVERYTHING,
    "prompt_cache_key": EVERYTHING, "metadata": EVERYTHING,
}  # fmt: skip


class StreamOptions(Strict, extra="ignore"):
    include_usage: bool = False


class JsonSchema(Strict):
    """schema: None = any object. strict: accepted whatever it is, because the text always keeps to the schema."""

    name: str | None = Field(default=None, max_length=1024)
    description: str | None = None
    keeps: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """text: anything. json_object: any object. json_schema: what a schema says."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @property
    def schema_asked(self) -> Any:
        """The schema of a text, None = any object."""
        return self.json_schema.keeps if self.json_schema is not None else None


class Sampling(Strict, extra="allow"):
    """What both kinds of request have. watermark: this server's own; False asks for unmarked text."""

    model: str = Field(max_length=1024)
    max_tokens: Whole | None = Field(default=None, ge=1, le=1 << 24)
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    n: Whole | None = Field(default=None, ge=1, le=1024)
    seed: Whole | None = Field(default=None, ge=-(1 << 63), lt=1 << 64)
    stop: str | Few[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    watermark: bool | None = None

    def check(self) -> None:
        """Raise ApiError for what is not served."""
        others = self.model_extra or {}
        if len(others) > MAX_OTHERS:
            raise ApiError(BAD, f"a request may have {MAX_OTHERS} parameters besides those served, got {len(others)}")
        for name, value in others.items():
            allowed = NEUTRAL.get(name, (False, 0, "", [], {}))
            if value is None or allowed is EVERYTHING or any(_same(value, one) for one in allowed):
                continue
            served = "is not served" if name in NEUTRAL else "is unknown"
            raise ApiError(BAD, f"{name[:64]!a} {served} by this server; leave it out", parameter=name[:64])
        form = self.response_format
        if form is not None and (form.type == "json_schema") != (form.json_schema is not None):
            said = "response_format must have a json_schema if its type is json_schema, and else none; mend it"
            raise ApiError(BAD, said, parameter="response_format")
        good = all(0 < len(stop) <= MAX_STOP_LENGTH and is_unicode(stop) for stop in self.stops)
        if len(self.stops) > MAX_STOPS or not good:
            kind = f"up to {MAX_STOPS} valid Unicode strings of 1 to {MAX_STOP_LENGTH} letters"
            raise ApiError(BAD, f"stop must be {kind}, got others; leave them out", parameter="stop")

    @property
    def stops(self) -> tuple[str, ...]:
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def json_mode(self) -> bool:
        """Whether the texts have to be JSON."""
        return self.response_format is not None and self.response_format.type != "text"

    @property
    def calls(self) -> Calls | None:
        """What functions the texts have to call, None = none."""
        return None

    @property
    def count(self) -> int:
        """Texts that are asked for."""
        return self.n or 1

    @property
    def alternatives(self) -> int | None:
        """Likeliest tokens whose log-probabilities are asked for, None = none, not even the token's own."""
        raise NotImplementedError


class CompletionRequest(Sampling):
    """`/v1/completions`."""

    prompt: str | Few[str] | Quick[int] | Few[Quick[int]]
    logprobs: Whole | None = Field(default=None, ge=0, le=5)

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


class TextPart(Strict):
    type: Literal["text"]
    text: str


class Called(Strict):
    name: str = Field(max_length=64)
    arguments: str


class ToolCall(Strict):
    """A call in an earlier message, as this server answered it."""

    id: str = Field(max_length=256)
    type: Literal["function"]
    function: Called

    def as_template(self) -> dict[str, Any]:
        """With its arguments as an object, which templates write in their own way. Raises ApiError for no object."""
        try:
            arguments = json.loads(self.function.arguments)
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            said = "the arguments of a call must be a JSON object, got something else; send them as they were answered"
            raise ApiError(BAD, said, parameter="messages")
        return {"id": self.id, "type": "function", "function": {"name": self.function.name, "arguments": arguments}}


class Message(Strict, extra="allow"):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Parts[TextPart] | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = Field(default=None, max_length=256)

    def as_template(self) -> dict[str, Any]:
        """What a chat template is given. Raises ApiError for a call that no template can be given."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())
        given: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": content}
        if self.tool_calls:
            given["tool_calls"] = [call.as_template() for call in self.tool_calls]
        return given if self.tool_call_id is None else {**given, "tool_call_id": self.tool_call_id}


class ChatRequest(Sampling):
    """`/v1/chat/completions`."""

    messages: Parts[Message] = Field(min_length=1)
    max_completion_tokens: Whole | None = Field(default=None, ge=1, le=1 << 24)
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(default=None, ge=0, le=20)
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None

    @property
    def calls(self) -> Calls | None:
        return calls_of(self.tools, self.tool_choice)

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        super().check()
        for number, message in enumerate(self.messages):
            extra = {name for name, value in (message.model_extra or {}).items() if value and name != "name"}
            if extra:
                name = min(extra)[:64]
                raise ApiError(
                    BAD, f"{name!a} of a message is not served by this server; leave it out",
                    parameter=f"messages[{number}]",
                )  # fmt: skip
        if self.calls is not None and self.json_mode:
            said = "a text is a call or has a response_format, got both; leave one of them out"
            raise ApiError(BAD, said, parameter="response_format")
        if self.calls is not None and self.stops:
            raise ApiError(BAD, "a call ends by itself, got stop as well; leave it out", parameter="stop")
        if self.top_logprobs and not self.logprobs:
            raise ApiError(BAD, "top_logprobs needs logprobs, which is off; set it to true", parameter="top_logprobs")


Asked = ChatRequest | CompletionRequest


def _same(value: Any, neutral: Any) -> bool:
    """Whether a value is this neutral one; True is no 1, but 1.0 is."""
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral
