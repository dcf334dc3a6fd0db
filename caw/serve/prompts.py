"""Prompts of a request as token ids, with every reason to reject one."""

import contextlib
from collections.abc import Sequence
from typing import Any

from caw.decoding.stopping import StopStrings
from caw.io.unicode import is_unicode
from caw.models.conversations import check_variables, write_conversation
from caw.serve.continuing import TextSoFar, before_text, check_prompt, not_the_text, same_text
from caw.serve.errors import BAD, ApiError
from caw.serve.requests import Asked, ChatRequest


class PromptReader:
    """Reads prompts with a model's tokenizer; thread-safe."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self.tokenizer, self.vocab_size = tokenizer, vocab_size

    def read(self, asked: Asked) -> list[list[int]]:
        """Return the token ids of each prompt. ApiError for one that cannot be continued."""
        if isinstance(asked, ChatRequest):
            return [self._encode(self._conversation(asked), whole=False)]
        given: list[Any] = list(asked.prompt) if _nested(asked) else [asked.prompt]
        return [self._encode(one, whole=True) if isinstance(one, str) else self._known(one) for one in given]

    def read_continued(self, asked: Asked, part: TextSoFar) -> list[int]:
        """Return the token ids of the prompt of a continued text. ApiError if the request does not end in the text."""
        text = StopStrings(self.tokenizer, None).text(list(part.tokens))
        if count_prompts(asked) > 1:
            raise ApiError(BAD, "a continuation requires one prompt, got several; send one", parameter="prompt")
        if isinstance(asked, ChatRequest):
            last = asked.messages[-1].as_template()
            if len(asked.messages) < 2 or last["role"] != "assistant" or not same_text(last["content"], text):
                raise not_the_text()
            before = asked.model_copy(update={"messages": asked.messages[:-1]})
            readings = self.read(before)
        elif isinstance(given := asked.prompt[0] if _nested(asked) else asked.prompt, str):
            readings = [self._encode(one, whole=True) for one in before_text(given, text)]
        else:
            [ids] = self.read(asked)
            end = tuple(ids[part.length :])
            same = end == part.tokens or same_text(StopStrings(self.tokenizer, None).text(list(end)), text)
            readings = [ids[: part.length]] if same else []
        if not readings:
            raise not_the_text()
        for ids in readings[:-1]:
            with contextlib.suppress(ApiError):
                check_prompt(part, ids)
                return ids
        check_prompt(part, readings[-1])
        return readings[-1]

    def _conversation(self, asked: ChatRequest) -> str:
        """Render a conversation with the chat template."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise ApiError(BAD, "the model has no chat template; use /v1/completions", parameter="messages")
        messages = [message.as_template() for message in asked.messages]
        told = asked.calls is not None or asked.offered
        tools = [tool.model_dump(exclude_none=True) for tool in asked.tools or ()] if told else None
        variables = asked.chat_template_kwargs or {}
        try:
            check_variables(self.tokenizer, variables)
        except ValueError as error:
            raise ApiError(BAD, str(error), parameter="chat_template_kwargs") from None
        try:
            return write_conversation(self.tokenizer, messages, tools=tools, variables=variables)
        except ValueError as error:
            raise ApiError(BAD, str(error), parameter="messages") from None

    def _encode(self, text: str, *, whole: bool) -> list[int]:
        """Return the ids of a prompt; whole: with the tokenizer's initial tokens, which templates write themselves."""
        if not is_unicode(text):
            raise ApiError(BAD, "the prompt must be valid Unicode, found half of a surrogate pair; repair it")
        return self._known(list(self.tokenizer(text, add_special_tokens=whole)["input_ids"]))

    def _known(self, ids: Sequence[int]) -> list[int]:
        if not ids:
            raise ApiError(BAD, "the prompt must have at least one token, got none; add some text", parameter="prompt")
        if not 0 <= min(ids) <= max(ids) < self.vocab_size:
            why = f"token ids must be below {self.vocab_size}; use the model's own tokenizer"
            raise ApiError(BAD, why, parameter="prompt")
        return list(ids)


def count_prompts(asked: Asked) -> int:
    return len(asked.prompt) if not isinstance(asked, ChatRequest) and _nested(asked) else 1


def _nested(asked: Asked) -> bool:
    """Return whether a request has a list of prompts rather than one text or one list of ids."""
    prompt = None if isinstance(asked, ChatRequest) else asked.prompt
    return isinstance(prompt, list) and any(not isinstance(one, int) for one in prompt)
