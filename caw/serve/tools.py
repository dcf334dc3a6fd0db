"""Function calls: texts that are JSON of a function's parameters, generated in JSON mode.

The request names the function, or lets the model choose one; for whether to call any, see `caw.serve.offers`.
"""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from caw.serve.errors import BAD, ApiError
from caw.serve.strict import Strict

NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}  # parameters of a function without any


class Function(Strict):
    """A function to call. strict: accepted with any value, because calls always match the schema."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    name: str = Field(max_length=64)


class ToolChoice(Strict):
    """The one function to call."""

    type: Literal["function"]
    function: FunctionName


@dataclass(frozen=True)
class Calls:
    """The functions that texts must call. functions: each text calls one, and names it if there are several."""

    functions: tuple[Function, ...]
    forced = True

    @property
    def schema(self) -> Any:
        if len(self.functions) == 1:
            return _parameters(self.functions[0])
        return {"anyOf": [
            {
                "type": "object", "required": ["name", "arguments"], "additionalProperties": False,
                "properties": {"name": {"const": one.name}, "arguments": _parameters(one)},
            }
            for one in self.functions
        ]}  # fmt: skip

    def read(self, text: str, finish: str) -> tuple[str, list[dict[str, Any]]]:
        """Return ("", the call in OpenAI's form); none for a text truncated before it named a function."""
        for one in self.functions:
            head = "" if len(self.functions) == 1 else f'{{"name":{json.dumps(one.name)},"arguments":'
            if text.startswith(head):
                brace = finish == "stop" and bool(head)  # around name and arguments
                return "", [call_of(one.name, text[len(head) : len(text) - brace])]
        return "", []


def call_of(name: str, arguments: str) -> dict[str, Any]:
    named = {"name": name, "arguments": arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": named}


def calls_of(tools: Sequence[Tool] | None, choice: str | ToolChoice | None) -> Calls | None:
    """Return the calls that a request's texts must make, None = none. ApiError for unsupported requests."""
    functions = {tool.function.name: tool.function for tool in tools or ()}
    if len(functions) < len(tools or ()):
        raise ApiError(BAD, "tools must have unique names, got one twice; rename it", parameter="tools")
    if isinstance(choice, ToolChoice):
        if choice.function.name not in functions:
            why = "tool_choice must name a function in tools; add it or name one of them"
            raise ApiError(BAD, why, parameter="tool_choice")
        return Calls((functions[choice.function.name],))
    if choice == "required":
        if not functions:
            raise ApiError(BAD, "tool_choice 'required' requires tools, got none; add some", parameter="tool_choice")
        return Calls(tuple(functions.values()))
    return None


def _parameters(function: Function) -> dict[str, Any]:
    return NOTHING if function.parameters is None else function.parameters
