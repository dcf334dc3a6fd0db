"""The supported part of OpenAI's requests. Of others, values without effect are accepted, and others rejected."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from caw.io.unicode import is_unicode
from caw.serve.errors import BAD, ApiError
from caw.serve.messages import Message
from caw.serve.strict import Strict, sentence
from caw.serve.tools import Calls, Function, Tool, ToolChoice, calls_of
from caw.settings import (
    DRAWING,
    MAX_BIAS,
    MAX_BIASES,
    MAX_PENALTY,
    MAX_REPETITION,
    MIN_REPETITION,
    MIN_TEMPERATURE,
    PENALTIES,
    leaves_one_token,
)

MAX_STOPS, MAX_STOP_LENGTH = 16, 1024
MAX_PROMPTS, MAX_MESSAGES, MAX_TOOLS = 1024, 4096, 128
MAX_VARIABLES = 64  # of a chat template
MAX_TOP_K = 1024  # what a step of all texts looks for
NUDGE = 1.0  # logits that a bias may add to a token without choosing for the mark

T = TypeVar("T")


def _whole(value: Any) -> Any:
    """Return a whole number written with a decimal point as an integer: in JSON, 5.0 is one too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
# a list whose first bad item is the last one looked at: a million of them would take seconds, and each has an error
Quick = Annotated[list[T], Field(fail_fast=True)]
Few = Annotated[list[T], Field(fail_fast=True, max_length=MAX_PROMPTS)]
Many = Annotated[list[T], Field(fail_fast=True, max_length=MAX_MESSAGES)]


KINDS: dict[type, str] = {str: "texts", list: "lists", int: "numbers"}


def _prompt(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Validate a prompt with one error message, instead of one per permitted type."""
    try:
        return check(value)
    except ValidationError:
        pass
    given = "something else"
    if isinstance(value, list):
        kinds = sorted({KINDS.get(type(one), "others") for one in value})
        given = f"a list of {len(value)}: {' mixed with '.join(kinds)}"
    expected = f"text, a list of token ids, or a list of up to {MAX_PROMPTS} texts or lists of token ids"
    raise sentence(f"a prompt must be {expected}, got {given}; send one of these")


SAMPLED = (*DRAWING, *PENALTIES[:3])
# what other servers are told where a text is to go on; here the token says so
CONTINUING = {"continue_final_message": True, "add_generation_prompt": False}


class StreamOptions(Strict, extra="ignore"):
    """include_usage: a last event has the token counts. continuous_usage_stats: every event has those so far."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchema(Strict):
    """schema: None = any object. strict: accepted with any value, because the text always matches the schema."""

    name: str | None = Field(default=None, max_length=1024)
    description: str | None = None
    keeps: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """text: anything. json_object: any object. json_schema: an object of this schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @property
    def schema_asked(self) -> Any:
        """Return the schema of a text, None = any object."""
        return self.json_schema.keeps if self.json_schema is not None else None


class RequestBody(Strict, extra="allow"):
    """Parameters of both kinds of request. watermark, continuation and embed_manifest are this server's own: False
    requests unmarked text, the token of a truncated answer continues it, and True puts its manifest inside.

    neutral: permitted values of unsupported parameters at this endpoint, see `unserved`.
    """

    neutral: ClassVar[dict[str, Any]] = {}

    model: str = Field(max_length=1024)
    max_tokens: Whole | None = Field(default=None, ge=1, le=1 << 24)
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    top_k: Whole | None = Field(default=None, ge=-1, le=MAX_TOP_K)
    min_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    do_sample: bool | None = None
    repetition_penalty: float | None = Field(default=None, ge=MIN_REPETITION, le=MAX_REPETITION, allow_inf_nan=False)
    presence_penalty: float | None = Field(default=None, ge=-MAX_PENALTY, le=MAX_PENALTY, allow_inf_nan=False)
    frequency_penalty: float | None = Field(default=None, ge=-MAX_PENALTY, le=MAX_PENALTY, allow_inf_nan=False)
    logit_bias: dict[str, float] | None = Field(default=None, max_length=MAX_BIASES)
    n: Whole | None = Field(default=None, ge=1, le=1024)
    seed: Whole | None = Field(default=None, ge=0, lt=1 << 64)
    stop: str | Few[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    watermark: bool | None = None
    continuation: str | None = Field(default=None, min_length=1, max_length=1 << 20)
    embed_manifest: bool | None = None

    def check(self) -> None:
        """Raise ApiError for unsupported parameters."""
        others = self.model_extra or {}
        if self.continuation is not None:
            others = {name: value for name, value in others.items() if CONTINUING.get(name) is not value}
            if self.count > 1 or self.calls is not None or self.offered:
                why = "a continuation requires n = 1 and no tools; leave them out"
                raise ApiError(BAD, why, parameter="continuation")
        refuse_unserved(others, self.neutral)
        self._check_sampling()
        form = self.response_format
        if form is not None and (form.type == "json_schema") != (form.json_schema is not None):
            why = "response_format must have a json_schema exactly if its type is json_schema; fix it"
            raise ApiError(BAD, why, parameter="response_format")
        good = all(0 < len(stop) <= MAX_STOP_LENGTH and is_unicode(stop) for stop in self.stops)
        if len(self.stops) > MAX_STOPS or not good:
            kind = f"up to {MAX_STOPS} valid Unicode strings of 1 to {MAX_STOP_LENGTH} characters"
            raise ApiError(BAD, f"stop must be {kind}; shorten it or leave it out", parameter="stop")

    def _check_sampling(self) -> None:
        if self.do_sample and self.temperature is not None and self.temperature < MIN_TEMPERATURE:
            why = "do_sample true requires a temperature above 0, got 0; leave one of them out"
            raise ApiError(BAD, why, parameter="do_sample")
        for name, value in (self.logit_bias or {}).items():
            if not (name.isascii() and name.isdigit() and len(name) <= 10) or not -MAX_BIAS <= value <= MAX_BIAS:
                why = f"logit_bias must map token ids to numbers in [-{MAX_BIAS:g}, {MAX_BIAS:g}], got "
                raise ApiError(BAD, f"{why}{name[:20]!a}: {value:g}; fix it", parameter="logit_bias")

    def sampling(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return sampling arguments of `RowSettings`; defaults: for omitted parameters.

        A text is greedy if do_sample is false, wherever it is given, and with settings under which sampling would be
        greedy (`leaves_one_token`), so that a client cannot have unmarked text by them. By default it is sampled at
        temperature 1.
        """
        named = {name: getattr(self, name) for name in SAMPLED}
        values = {**defaults, **{name: value for name, value in named.items() if value is not None}}
        samples = values.pop("do_sample", True) if self.do_sample is not None or self.temperature is None else True
        temperature = values.pop("temperature", 1.0)
        values.pop("do_sample", None)
        cut = {"top_k": values.get("top_k", 0), "top_p": values.get("top_p", 1.0), "min_p": values.get("min_p", 0.0)}
        samples = samples and not leaves_one_token(temperature=temperature, **cut)
        bias = {int(name): value for name, value in (self.logit_bias or {}).items()}
        return {
            **values, "do_sample": samples, "temperature": temperature if samples else 1.0,
            "top_k": max(0, values.get("top_k", 0)), "logit_bias": bias or None,
        }  # fmt: skip

    @property
    def stops(self) -> tuple[str, ...]:
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def steers(self) -> bool:
        """Whether a bias favours tokens by more than `NUDGE`."""
        return max((self.logit_bias or {"": 0.0}).values(), default=0.0) > NUDGE

    @property
    def json_mode(self) -> bool:
        return self.response_format is not None and self.response_format.type != "text"

    @property
    def calls(self) -> Calls | None:
        """Functions that the texts must call, None = none."""
        return None

    @property
    def offered(self) -> tuple[Function, ...]:
        return ()

    @property
    def count(self) -> int:
        return self.n or 1

    @property
    def alternatives(self) -> int | None:
        """Number of top tokens whose log-probabilities are requested, None = none, not even the token's own."""
        raise NotImplementedError


class CompletionRequest(RequestBody):
    """`/v1/completions`."""

    neutral: ClassVar[dict[str, Any]] = {"add_special_tokens": (True,)}

    prompt: Annotated[str | Few[str] | Quick[int] | Few[Quick[int]], WrapValidator(_prompt)]
    logprobs: Whole | None = Field(default=None, ge=0, le=5)

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


class ChatRequest(RequestBody):
    """`/v1/chat/completions`. chat_template_kwargs: variables of the chat template, such as enable_thinking."""

    # templates write a text's first tokens themselves
    neutral: ClassVar[dict[str, Any]] = {"add_special_tokens": (False,)}

    messages: Many[Message] = Field(min_length=1)
    max_completion_tokens: Whole | None = Field(default=None, ge=1, le=1 << 24)
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(default=None, ge=0, le=20)
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, max_length=MAX_VARIABLES)

    @property
    def calls(self) -> Calls | None:
        return calls_of(self.tools, self.tool_choice)

    @property
    def offered(self) -> tuple[Function, ...]:
        return tuple(tool.function for tool in self.tools or ()) if self.tool_choice in (None, "auto") else ()

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        super().check()
        for number, message in enumerate(self.messages):
            message.check(f"messages[{number}]")
        if (self.calls is not None or self.offered) and self.json_mode:
            why = "tools and response_format exclude each other, got both; leave one of them out"
            raise ApiError(BAD, why, parameter="response_format")
        if self.calls is not None and self.stops:
            raise ApiError(BAD, "tools and stop exclude each other, got both; leave stop out", parameter="stop")
        if self.top_logprobs and not self.logprobs:
            raise ApiError(BAD, "top_logprobs requires logprobs; set it to true", parameter="top_logprobs")


Asked = ChatRequest | CompletionRequest


# Parameters that clients send and this server does not serve. A known one may say what changes nothing here, its own
# neutral value; an unknown one is refused whatever it says, since nobody can tell what it would change. null is "not
# given", for both
MAX_OTHERS = 256
EVERYTHING = object()  # it changes no text, whatever it says
NEUTRAL: dict[str, Any] = {
    "length_penalty": (1,), "best_of": (1,), "echo": (False,), "suffix": ("",), "typical_p": (1,), "num_beams": (1,),
    "no_repeat_ngram_size": (0,), "repeat_penalty": (1,), "tfs_z": (1,), "mirostat": (0,), "epsilon_cutoff": (0,),
    "eta_cutoff": (0,), "guidance_scale": (1,), "prompt_logprobs": (),
    "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False), "modalities": (["text"],), "reasoning_effort": (), "audio": (),
    "prediction": (), "web_search_options": (), "bad_words": ([],), "allowed_token_ids": (),
    "use_beam_search": (False,), "skip_special_tokens": (True,), "ignore_eos": (False,), "min_tokens": (0,),
    "spaces_between_special_tokens": (True,), "include_stop_str_in_output": (False,), "truncate_prompt_tokens": (),
    "stop_token_ids": ([],), "add_generation_prompt": (True,), "continue_final_message": (False,), "documents": ([],),
    "chat_template": (), "verbosity": ("medium",), "n_probs": (0,), "priority": (0,),
    "service_tier": ("auto", "default"), "store": (False,), "user": EVERYTHING, "safety_identifier": EVERYTHING,
    "prompt_cache_key": EVERYTHING, "prompt_cache_retention": EVERYTHING, "prompt_cache_options": EVERYTHING,
    "metadata": EVERYTHING,
}  # fmt: skip
# names of other servers, with what is served instead
INSTEAD = {
    "repeat_penalty": "repetition_penalty", "enable_thinking": "chat_template_kwargs", "think": "chat_template_kwargs",
    "thinking": "chat_template_kwargs", "max_new_tokens": "max_tokens", "max_length": "max_tokens",
    "num_predict": "max_tokens", "n_predict": "max_tokens", "stop_sequences": "stop", "random_seed": "seed",
    "num_return_sequences": "n",
}  # fmt: skip


def refuse_unserved(others: Mapping[str, Any], neutral: Mapping[str, Any]) -> None:
    """Raise ApiError for a parameter that would have an effect; neutral: of this endpoint in addition to `NEUTRAL`."""
    if len(others) > MAX_OTHERS:
        raise ApiError(
            BAD, f"a request may have at most {MAX_OTHERS} unsupported parameters, got {len(others)}; leave them out"
        )
    known = {**NEUTRAL, **neutral}
    for name, value in others.items():
        allowed = known.get(name, ())
        if value is None or allowed is EVERYTHING or any(_same(value, one) for one in allowed):
            continue
        served = "is not supported" if name in known else "is unknown"
        remedy = f"use {INSTEAD[name]}" if name in INSTEAD else "leave it out"
        raise ApiError(BAD, f"{name[:64]!a} {served} by this server; {remedy}", parameter=name[:64])


def _same(value: Any, neutral: Any) -> bool:
    """Return whether a value equals this neutral one; True is not 1, but 1.0 is."""
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral
