"""Conversations: messages with roles, rendered by a tokenizer's chat template."""

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Messages = Sequence[Mapping[str, Any]]
LONGEST = 200  # characters of what a template says
LONGEST_VALUE = 1024  # characters of a variable
# what transformers gives templates besides its own arguments
RESERVED = {"messages", "self", "loop", "namespace", "raise_exception", "strftime_now", "tojson", "range", "dict"}
RESERVED |= {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}


def is_conversation(value: Any) -> bool:
    """Return whether this is a list of messages: mappings, at least one."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or not value:
        return False
    return all(isinstance(one, Mapping) for one in value)


def write_conversation(
    tokenizer: Any,
    messages: Messages,
    *,
    tools: Any = None,
    resume: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Render a conversation with a chat template, up to where the assistant speaks.

    messages: each has a role and a content, which is text or a list of parts {"type": "text", "text": ...}; an
        assistant's message may have tool_calls and no content. Fields that are None are left out.
    tools: functions that the template is told of.
    resume: a last message of the assistant is continued; otherwise the assistant begins another one behind it.

    variables: of the template, as checked by `check_variables`.

    Raises ValueError, in one sentence that names the message: for a message that is none, for one that the template
    leaves out, and for what the template refuses itself.
    """
    given = [_message(message, place) for place, message in enumerate(messages)]
    template = str(getattr(tokenizer, "chat_template", None) or "")
    if "tool_calls" not in template and any("tool_calls" in message for message in given):
        raise ValueError("the chat template has no place for calls; send what was called and found as text")
    continued = resume and given[-1]["role"] == "assistant"
    try:
        text = _applied(tokenizer, given, tools, continued, variables)
    except Exception as error:  # templates raise what they like, about roles and their order
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:LONGEST].rstrip(".")
        raise ValueError(f"the chat template refuses the messages: {reason}; mend the messages") from error
    if (lost := _left_out(tokenizer, given, tools, continued, variables)) is not None:
        role = given[lost]["role"]
        raise ValueError(f"the chat template leaves out message {lost} of role {role!a}; use a role that it knows")
    return text


def check_variables(tokenizer: Any, variables: Mapping[str, Any]) -> None:
    """Raise ValueError for a variable that the chat template does not read, or that callers may not set."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    for name, value in variables.items():
        if name in RESERVED or name in inspect.signature(tokenizer.apply_chat_template).parameters:
            raise ValueError(f"the variable {name[:64]!a} of the chat template is set by the server; leave it out")
        if not name.isidentifier() or not re.search(rf"\b{re.escape(name)}\b", template):
            raise ValueError(f"the chat template does not read a variable {name[:64]!a}; leave it out")
        if not isinstance(value, bool | int | float | str | None) or len(str(value)) > LONGEST_VALUE:
            said = f"true, false, a number or up to {LONGEST_VALUE} characters, got something else"
            raise ValueError(f"the variable {name[:64]!a} of the chat template must be {said}; change it")


def _applied(
    tokenizer: Any, messages: list[dict[str, Any]], tools: Any, continued: bool, variables: Mapping[str, Any] | None
) -> str:
    text = tokenizer.apply_chat_template(
        messages,
        tools,
        add_generation_prompt=not continued,
        continue_final_message=continued,
        tokenize=False,
        **(variables or {}),
    )
    return str(text)


def _left_out(
    tokenizer: Any, messages: list[dict[str, Any]], tools: Any, continued: bool, variables: Mapping[str, Any] | None
) -> int | None:
    """Return the index of the first message whose content is missing from the text, None if all are present.

    Templates silently drop roles that they do not know. Contents are replaced by unique words, because templates may
    trim or cut the real ones. Calls may replace a content.
    """
    words = {
        place: f"caw{place}x"
        for place, message in enumerate(messages)
        if message["content"].strip() and "tool_calls" not in message
    }
    try:
        marked = [
            {**message, "content": words.get(place, message["content"])} for place, message in enumerate(messages)
        ]
        text = _applied(tokenizer, marked, tools, continued, variables)
    except Exception:  # a template that reads contents need not take these
        return None
    return next((place for place, word in words.items() if word not in text), None)


def _message(message: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Return a message for a template: its content is text, arguments of calls are objects."""
    found = {name: value for name, value in message.items() if value is not None}
    role = found.get("role")
    if not isinstance(role, str) or not role:
        raise ValueError(f"message {place} must have a role, got {role!r}; say e.g. 'user'")
    if found.get("tool_calls"):
        found["tool_calls"] = [_call(call, place) for call in found["tool_calls"]]
    else:
        found.pop("tool_calls", None)
    if "content" not in found and role != "assistant":
        raise ValueError(f"message {place} of role {role!a} must have a content, got none; give it some text")
    found["content"] = _content(found.get("content", ""), place)
    return found


def _content(content: Any, place: int) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        kind = type(content).__name__
        raise ValueError(f"the content of message {place} must be text or a list of parts, got {kind}; convert it")
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            named = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ValueError(f"message {place} has a part of type {named!a}, only text is read; leave it out")
    return "".join(part["text"] for part in content)


def _call(call: Any, place: int) -> dict[str, Any]:
    """Return a call with its arguments as an object, which templates write in their own way."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise ValueError(f"calls of message {place} must have a function; write them in OpenAI's format")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, Mapping):
        raise ValueError(
            f"the arguments of a call of message {place} must be a JSON object, got something else; leave out a call "
            "that was cut off"
        )
    return {**call, "function": {**function, "arguments": dict(arguments)}}
