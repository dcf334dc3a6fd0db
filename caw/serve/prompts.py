"""The prompts of a request as token ids, and every reason to refuse one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from caw.io.unicode import is_unicode
from caw.serve.errors import BAD, ApiError
from caw.serve.requests import Asked, ChatRequest


class PromptReader:
    """Reads prompts with a model's tokenizer; safe to use from several threads."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self.tokenizer, self.vocab_size = tokenizer, vocab_size

    def read(self, asked: Asked) -> list[list[int]]:
        """Token ids of each prompt; ApiError for one that cannot be continued."""
        if isinstance(asked, ChatRequest):
            return [self._encode(self._conversation(asked), whole=False)]
        given: list[Any] = list(asked.prompt) if _nested(asked) else [asked.prompt]
        return [self._encode(one, whole=True) if isinstance(one, str) else self._known(one) for one in given]

    def _conversation(self, asked: ChatRequest) -> str:
        """The text that the chat template makes of a conversation."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise ApiError(BAD, "the model has no chat template; use /v1/completions", parameter="messages")
        messages = [message.as_template() for message in asked.messages]
        if any("tool_calls" in message for message in messages) and "tool_calls" not in str(
            self.tokenizer.chat_template
        ):
            said = "the model's chat template has no place for calls; send what was called and found as text"
            raise ApiError(BAD, said, parameter="messages")
        tools = [tool.model_dump(exclude_none=True) for tool in asked.tools or ()] if asked.calls is not None else None
        try:
            return str(self.tokenizer.apply_chat_template(messages, tools, add_generation_prompt=True, tokenize=False))
        except Exception as error:  # templates raise what they like, about roles and their order
            reason = (str(error).splitlines() or ["no reason given"])[0][:200]
            said = f"the model's chat template refuses these messages: {reason}"
            raise ApiError(BAD, said, parameter="messages") from None

    def _encode(self, text: str, *, whole: bool) -> list[int]:
        """The ids of a prompt; whole: with what the tokenizer begins a text with, which templates write themselves."""
        if not is_unicode(text):
            raise ApiError(BAD, "the prompt must be valid Unicode, found half of a surrogate pair; repair it")
        return self._known(list(self.tokenizer(text, add_special_tokens=whole)["input_ids"]))

    def _known(self, ids: Sequence[int]) -> list[int]:
        if not ids:
            raise ApiError(BAD, "the prompt must have at least one token, got none; add some text", parameter="prompt")
        if not 0 <= min(ids) <= max(ids) < self.vocab_size:
            said = f"token ids must be below {self.vocab_size}, got others; use the model's own tokenizer"
            raise ApiError(BAD, said, parameter="prompt")
        return list(ids)


def count_prompts(asked: Asked) -> int:
    """How many prompts a request has."""
    return len(asked.prompt) if not isinstance(asked, ChatRequest) and _nested(asked) else 1


def _nested(asked: Asked) -> bool:
    """Whether a request has a list of prompts, rather than one as a text or as ids."""
    prompt = None if isinstance(asked, ChatRequest) else asked.prompt
    return isinstance(prompt, list) and any(not isinstance(one, int) for one in prompt)
