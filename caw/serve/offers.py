"""Functions that a model may call or not (`tool_choice` "auto"), and the calls that a finished text holds.

Calls are read as Hermes and Qwen write them, where the chat template shows that form. A text in which one call is
broken, or names another function, has none: it reaches the client as text, never as an unchecked call.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from caw.decoding.request import ActiveSequence
from caw.decoding.stopping import StopStrings
from caw.serve.errors import BAD, ApiError
from caw.serve.thinking import CALL, CALLED, CLOSE, Thinking, answer_of
from caw.serve.tools import Function, call_of


@dataclass(frozen=True)
class Offer:
    """The functions that texts may call. most: calls of one text, None = any number."""

    functions: tuple[Function, ...]
    most: int | None = None
    forced = False

    def read(self, text: str, finish: str) -> tuple[str, list[dict[str, Any]]]:
        """Return (the text outside of calls, the calls in OpenAI's form); all of it and none if a call is not whole."""
        thoughts, close, rest = text.rpartition(CLOSE)
        outside, *sections = rest.split(CALL)
        calls = []
        for section in sections:
            try:
                call, end = DECODER.raw_decode(section.lstrip())
                arguments = call.get("arguments") if isinstance(call, dict) else None
                # 1e999 is JSON, but what it is read as is not
                written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
            except (ValueError, RecursionError):
                return text, []
            rest = section.lstrip()[end:].lstrip()
            named = isinstance(arguments, dict) and call.get("name") in [one.name for one in self.functions]
            if not named or (rest and not rest.startswith(CALLED)):
                return text, []
            calls.append(call_of(call["name"], written))
            outside += rest.removeprefix(CALLED)
        return (thoughts + close + outside).rstrip() if calls else text, calls[: self.most]

    def suffices(self, stops: StopStrings, fewest: int, thinks: bool, sequence: ActiveSequence) -> bool:
        """Return whether a text has calls and, outside of them (and of thinking, if `thinks`), fewer tokens."""
        outside, calls = self.read(stops.shown(sequence.visible), "")
        answer = answer_of(outside, Thinking(stops.tokenizer, sequence.request.ids, thinks=thinks))
        return bool(calls) and len(stops.tokenizer(answer, add_special_tokens=False)["input_ids"]) < fewest


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(parse_constant=_refuse)


def offer_of(functions: Sequence[Function], tokenizer: Any, *, parallel: bool) -> Offer | None:
    """Return the offer of a request, None for no functions. ApiError for a model whose calls are not read."""
    if not functions:
        return None
    template = str(getattr(tokenizer, "chat_template", None) or "")
    readable = all(part in template for part in ("tools", CALL, "arguments")) and "<function=" not in template
    ids = list(tokenizer(CALL, add_special_tokens=False)["input_ids"])
    if not readable or "<arg_key>" in template or StopStrings(tokenizer, None).text(ids) != CALL:
        reason = f"tool_choice 'auto' requires a model whose chat template shows calls as JSON in {CALL}"
        raise ApiError(BAD, f"{reason}; name a function, or use 'required'", parameter="tool_choice")
    return Offer(tuple(functions), None if parallel else 1)
