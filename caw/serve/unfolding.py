"""Incremental decoding: text pieces from tokens, none of which is ever taken back."""

from collections.abc import Sequence

from caw.decoding.stopping import StopStrings
from caw.io.token_texts import INCOMPLETE


class Unfolding:
    """Holds back incomplete characters and possible beginnings of stop strings.

    Args:
        stops: of the text, with its tokenizer. holds: a string from which on the rest comes with the last piece, None =
            no such string.

    sent: all pieces so far, joined. Pieces join to the text that `StopStrings.shown` returns for all tokens, provided
        that the tokenizer decodes parts alike; only the tokens since the last but one piece are decoded again.
    """

    def __init__(self, stops: StopStrings, holds: str | None = None) -> None:
        self.stops, self.sent = stops, ""
        self._strings = [*stops.strings, *([holds] if holds else [])]
        self._tokens: list[int] = []
        self._start = self._read = 0  # text is known up to _read; decoding begins at _start
        self._held, self._ended = "", False
        self._behind = max((len(stop) for stop in self._strings), default=1) - 1

    def go_on(self, tokens: Sequence[int]) -> None:
        """Process tokens whose text has been sent, except for an incomplete character, which follows."""
        self._tokens += tokens
        self.sent = self.stops.text(self._tokens).rstrip(INCOMPLETE)
        # later pieces are what decoding all of these gives besides: their first letters depend on those before
        self._start, self._read = 0, len(self._tokens)
        while self._read and len(self.stops.text(self._tokens[: self._read])) > len(self.sent):
            self._read -= 1

    def add(self, tokens: Sequence[int]) -> str:
        """Return the piece that tokens add, "" if none is final yet."""
        self._tokens += tokens
        known = self.stops.text(self._tokens[self._start : self._read])
        text = self.stops.text(self._tokens[self._start :])
        if len(text) > len(known) and not text.endswith(INCOMPLETE):
            self._held += text[len(known) :]
            self._start, self._read = self._read, len(self._tokens)
        return self._release()

    def finish(self, tokens: Sequence[int]) -> str:
        """Return the last piece; tokens: all visible ones of the finished text."""
        text = self.stops.shown(list(tokens))
        # else a decoder that changes earlier letters, or a stop string that began in what had been sent before
        known = text.startswith(self.sent)
        piece = text[len(self.sent) :] if known else self._cut(self._held, self.stops.strings)
        self.sent += piece
        return piece

    def _release(self) -> str:
        """Return the held text up to a stop string or a possible beginning of one."""
        if self._ended:
            return ""
        piece = self._cut(self._held, self._strings)
        if len(piece) < len(self._held):
            self._ended = True
        else:
            piece = piece[: len(piece) - self._doubtful(piece)]
        self._held = self._held[len(piece) :]
        self.sent += piece
        return piece

    def _before(self) -> str:
        """Return the end of the sent text, in which a stop string may have begun."""
        return self.sent[len(self.sent) - self._behind :] if self._behind < len(self.sent) else self.sent

    def _cut(self, text: str, strings: Sequence[str]) -> str:
        """Return the text up to one of these strings that ends in it."""
        before = self._before()
        whole = before + text
        starts = [whole.find(stop, max(0, len(before) - len(stop) + 1)) for stop in strings]
        ends = [start for start in starts if start >= 0]
        return text[: max(0, min(ends) - len(before))] if ends else text

    def _doubtful(self, text: str) -> int:
        """Return how many of its last characters begin a stop string."""
        length_of, text = len(text), self._before() + text
        longest = (
            length
            for stop in self._strings
            for length in range(min(len(stop) - 1, len(text)), 0, -1)
            if text.endswith(stop[:length])
        )
        return min(length_of, max(longest, default=0))
