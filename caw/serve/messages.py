"""Messages of a conversation, in the shapes that OpenAI's clients send and send back.

Fields that do not affect the text are listed in SILENT with their permitted values. Any other field is rejected by
name, whatever its value.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from caw.serve.errors import BAD, ApiError
from caw.serve.strict import Strict, sentence

MAX_PARTS, MAX_CALLS = 4096, 128
TEXT_PARTS = ("text", "input_text", "output_text")
ANYTHING = object()

# who sends what: `name`, `refusal`, `annotations`, `audio`, `function_call`: the openai package, which dumps its
# messages whole; `type`: lm-eval; `cache_control`, `images`, `thinking_blocks`, `reasoning_items`,
# `provider_specific_fields`: LiteLLM; `id`: Open WebUI and stored conversations; `prefix`, `partial`: other endpoints'
SILENT: dict[str, Any] = {
    "type": ("text", "message", None), "name": ANYTHING, "id": ANYTHING, "refusal": (None, ""),
    "annotations": ANYTHING, "audio": (None,), "function_call": (None,), "cache_control": ANYTHING,
    "provider_specific_fields": ANYTHING, "images": (None, []), "thinking_blocks": (None, []),
    "reasoning_items": (None, []), "reasoning_details": (None, []), "is_error": (None, False),
    "prefix": (None, False), "partial": (None, False),
}  # fmt: skip
SILENT_IN_PARTS = ("type", "text", "cache_control", "prompt_cache_breakpoint", "annotations")
SILENT_IN_CALLS = ("index", "cache_control", "provider_specific_fields", "extra_content")


def _content(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise sentence("content must be text or a list of parts; send text")
    if len(value) > MAX_PARTS:
        raise sentence(f"content may have at most {MAX_PARTS} parts, got {len(value)}; join them")
    return "".join(_part(part) for part in value)


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        raise sentence('a content part must be {"type": "text", "text": ...}; send that')
    kind = part.get("type")
    if kind not in TEXT_PARTS:
        named = f"{kind[:64]!a}" if isinstance(kind, str) else "no type"
        raise sentence(f"content parts of type {named} are not supported, only text; leave it out")
    if not isinstance(part.get("text"), str):
        raise sentence(f"a content part of type {kind!a} must have a text; add it, or leave the part out")
    if strange := part.keys() - set(SILENT_IN_PARTS):
        raise sentence(f"{min(strange)[:64]!a} of a content part is not supported; leave it out")
    return str(part["text"])


def _without_silent(value: Any) -> Any:
    """Return a call without the fields that have no effect: streamed calls have an index."""
    if not isinstance(value, dict):
        return value
    return {name: given for name, given in value.items() if name not in SILENT_IN_CALLS}


class Called(Strict):
    name: str = Field(max_length=64)
    arguments: str


class ToolCall(Strict):
    """A call in an earlier message, as this server returned it."""

    id: str = Field(max_length=256)
    type: Literal["function"] = "function"
    function: Called


Calls = Annotated[list[Annotated[ToolCall, BeforeValidator(_without_silent)]], Field(max_length=MAX_CALLS)]


class Message(Strict, extra="allow"):
    """content: its text, None only of an assistant. reasoning: as reasoning_content, if a template knows it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Any, PlainValidator(_content)] = None
    tool_calls: Annotated[Calls, Field(fail_fast=True)] | None = None
    tool_call_id: str | None = Field(default=None, max_length=256)
    reasoning_content: str | None = None
    reasoning: str | None = None

    def check(self, place: str) -> None:
        """Raise ApiError, naming the message's index, for unsupported content."""
        for name, value in (self.model_extra or {}).items():
            allowed = SILENT.get(name, ())
            if allowed is not ANYTHING and not any((type(value), value) == (type(one), one) for one in allowed):
                why = f"{name[:64]!a} of a message is not supported; leave it out"
                raise ApiError(BAD, why, parameter=place)
        silent = self.role == "assistant" and bool({"content", "tool_calls"} & self.model_fields_set)
        if self.content is None and not silent:
            why = f"a message of role {self.role!a} must have content, got none; send text"
            raise ApiError(BAD, why, parameter=place)

    def as_template(self) -> dict[str, Any]:
        given: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role}
        given["content"] = self.content or ""
        thought = self.reasoning_content or self.reasoning
        if self.role == "assistant" and thought:
            given["reasoning_content"] = thought
        if self.tool_calls:
            given["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        return given if self.tool_call_id is None else {**given, "tool_call_id": self.tool_call_id}
