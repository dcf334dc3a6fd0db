"""Stop strings: end a sequence when its text holds one of them."""

from collections.abc import Sequence
from typing import Any

from caw.io.show import shown
from caw.io.unicode import is_unicode


class StopStrings:
    """Find stop strings (a string, several, or None) in growing texts that the tokenizer decodes."""

    def __init__(self, tokenizer: Any, stop: str | Sequence[str] | None) -> None:
        strings = [stop] if isinstance(stop, str) else [] if stop is None else stop
        if not isinstance(strings, (list, tuple)) or any(not isinstance(s, str) or not s for s in strings):
            raise ValueError(
                f"stop must be a non-empty string or a list of them, got {shown(stop)}; leave it out for none"
            )
        if not all(map(is_unicode, strings)):
            raise ValueError(
                "stop must be valid Unicode, found half of a surrogate pair, which no text holds; repair it, or "
                "leave it out"
            )
        self.strings = list(strings)
        self.tokenizer = tokenizer
        # a token adds at least one byte, so the longest string spans at most this many tokens (+ one it starts inside)
        self._tail = max((len(s.encode()) for s in strings), default=0) + 4

    def reached(self, tokens: list[int]) -> bool:
        """Tell whether the newest token completed a stop string, with special tokens counted as text or left out."""
        if not self.strings:
            return False
        tails = [self.text(tokens[-self._tail :], skip_special_tokens=skip) for skip in (True, False)]
        return any(s in tail for s in self.strings for tail in tails)

    def text(self, tokens: list[int], *, skip_special_tokens: bool = True) -> str:
        return self.tokenizer.decode(
            tokens, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )

    def shown(self, tokens: list[int]) -> str:
        """Return the text of finished tokens, cut before the first stop string."""
        return self.cut(self.text(tokens))

    def cut(self, text: str) -> str:
        """Return the text before the first stop string."""
        ends = [text.find(s) for s in self.strings if s in text]
        return text[: min(ends)] if ends else text
