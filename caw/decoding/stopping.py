"""Stop strings: end a sequence when its text holds one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StopStrings:
    """Watches texts grow.

    Args:
        tokenizer: decodes ids. stop: a string, several, or None. count: number of sequences.
    """

    def __init__(self, tokenizer: Any, stop: str | Sequence[str] | None, count: int) -> None:
        strings = [stop] if isinstance(stop, str) else list(stop or [])
        if any(not isinstance(s, str) or not s for s in strings):
            raise ValueError(f"stop must be non-empty strings, got {strings!r}; leave it out for none")
        self.strings = strings
        self._tokenizer = tokenizer
        # a token adds at least one byte, so the longest string spans at most this many tokens (+ one it starts inside)
        self._tail = max((len(s.encode()) for s in strings), default=0) + 4

    def reached(self, index: int, tokens: list[int]) -> bool:
        """Whether the newest token completed a stop string."""
        if not self.strings:
            return False
        tail = self._tokenizer.decode(tokens[-self._tail :], clean_up_tokenization_spaces=False)
        return any(s in tail for s in self.strings)

    def cut(self, text: str) -> str:
        """The text before the first stop string."""
        ends = [text.find(s) for s in self.strings if s in text]
        return text[: min(ends)] if ends else text
