"""The thinking section of a text, and its calls, which an operator may leave unmarked."""

from collections.abc import Sequence
from typing import Any

from caw.decoding.stopping import StopStrings

OPEN, CLOSE = "<think>", "</think>"
CALL, CALLED = "<tool_call>", "</tool_call>"
TAIL = 16  # tokens of the prompt in which templates open a section


class Thinking:
    """Follows one text through the thinking section at the start of the text or its prompt, and its calls.

    Later sections do not count: a client could have the whole answer written in one. Nor do calls that one thinks of.

    Args:
        prompt: token ids; empty for a prompt whose end the client wrote, who could open a section there.
        thinks, calls: which of the sections are unmarked.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], *, thinks: bool = True, calls: bool = False) -> None:
        self.calls = StopStrings(tokenizer, [CALL, CALLED, CLOSE]) if calls else None
        self.opened, self.closed = StopStrings(tokenizer, OPEN), StopStrings(tokenizer, CLOSE)
        before = self.opened.text(list(prompt[-TAIL:]), skip_special_tokens=False)
        self.inside, self.thought = thinks and before.rstrip().endswith(OPEN), not thinks

    @property
    def over(self) -> bool:
        """Whether no more such sections can come."""
        return self.thought and self.calls is None

    def go_on(self, tokens: Sequence[int]) -> None:
        """Process the tokens that an earlier request generated."""
        for count in range(1, len(tokens) + 1):
            self.after(list(tokens[:count]))

    def after(self, tokens: list[int]) -> bool:
        """Return whether the token after these, all new ones so far, belongs to a section."""
        if self.thought:
            pass
        elif self.inside:
            self.thought = self.closed.reached(tokens)
            self.inside = not self.thought
        else:
            text = self.opened.text(tokens, skip_special_tokens=False).lstrip()
            self.inside = text.startswith(OPEN)
            self.thought = not self.inside and not OPEN.startswith(text)
        if self.thought and self.calls is not None and self.calls.reached(tokens):
            text = self.calls.text(tokens[-TAIL:], skip_special_tokens=False)
            self.inside = text.rfind(CALL) > max(text.rfind(CALLED), text.rfind(CLOSE))
        return self.inside


def answer_of(text: str, thinking: Thinking) -> str:
    """Return a text without the section at its beginning, if that ends. thinking: as it was before the text."""
    opened = thinking.inside or (not thinking.thought and text.lstrip().startswith(OPEN))
    return text.split(CLOSE, 1)[-1] if opened else text
