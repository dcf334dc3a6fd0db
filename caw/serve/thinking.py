"""The thinking section of a text, which an operator may leave unmarked."""

from collections.abc import Sequence
from typing import Any

from caw.decoding.stopping import StopStrings

OPEN, CLOSE = "<think>", "</think>"
TAIL = 16  # tokens of the prompt in which templates open a section


class Thinking:
    """Follows one text through the thinking section at the start of the text or its prompt.

    Later sections do not count: a client could have the whole answer written in one.

    Args:
        prompt: token ids; empty for a prompt whose end the client wrote, who could open a section there.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        self.opened, self.closed = StopStrings(tokenizer, OPEN), StopStrings(tokenizer, CLOSE)
        before = self.opened.text(list(prompt[-TAIL:]), skip_special_tokens=False)
        self.inside, self.over = before.rstrip().endswith(OPEN), False

    def go_on(self, tokens: Sequence[int]) -> None:
        """Process the tokens that an earlier request generated."""
        for count in range(1, len(tokens) + 1):
            self.after(list(tokens[:count]))

    def after(self, tokens: list[int]) -> bool:
        """Return whether the token after these, all new ones so far, belongs to the section."""
        if self.over:
            return False
        if self.inside:
            self.over = self.closed.reached(tokens)
            self.inside = not self.over
        else:
            text = self.opened.text(tokens, skip_special_tokens=False).lstrip()
            self.inside = text.startswith(OPEN)
            self.over = not self.inside and not OPEN.startswith(text)
        return self.inside
