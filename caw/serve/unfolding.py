"""The text of tokens as they come, in pieces that never have to be taken back."""

from __future__ import annotations

from collections.abc import Sequence

from caw.decoding.stopping import StopStrings

INCOMPLETE = "�"  # what decoders show of a letter whose bytes are not all there


class Unfolding:
    """Holds back letters that are not whole, and what may be the beginning of a stop string.

    Args:
        stops: of the text, with its tokenizer.

    sent: all pieces so far, joined. Pieces join to the text that `StopStrings.shown` gives of all tokens, as far as the
    tokenizer decodes a part of them alike; only the tokens since the last but one piece are decoded again.
    """

    def __init__(self, stops: StopStrings) -> None:
        self.stops, self.sent = stops, ""
        self._tokens: list[int] = []
        self._start = self._read = 0  # text is known up to _read; decoding begins at _start
        self._held, self._ended = "", False

    def add(self, tokens: Sequence[int]) -> str:
        """The piece that tokens bring, "" if none is sure yet."""
        self._tokens += tokens
        known = self.stops.text(self._tokens[self._start : self._read])
        text = self.stops.text(self._tokens[self._start :])
        if len(text) > len(known) and not text.endswith(INCOMPLETE):
            self._held += text[len(known) :]
            self._start, self._read = self._read, len(self._tokens)
        return self._release()

    def finish(self, tokens: Sequence[int]) -> str:
        """The last piece; tokens: all visible ones of the finished text."""
        text = self.stops.shown(list(tokens))
        if text.startswith(self.sent):
            piece = text[len(self.sent) :]
        else:  # a decoder that changes earlier letters: what was sent stays, what was held follows
            piece = "" if self._ended else self.stops.cut(self._held)
        self.sent += piece
        return piece

    def _release(self) -> str:
        """What is held, up to a stop string or what may become one."""
        if self._ended:
            return ""
        piece = self.stops.cut(self._held)
        if len(piece) < len(self._held):
            self._ended = True
        else:
            piece = piece[: len(piece) - self._doubtful(piece)]
        self._held = self._held[len(piece) :]
        self.sent += piece
        return piece

    def _doubtful(self, text: str) -> int:
        """How many of its last letters a stop string begins with."""
        longest = (
            length
            for stop in self.stops.strings
            for length in range(min(len(stop) - 1, len(text)), 0, -1)
            if text.endswith(stop[:length])
        )
        return max(longest, default=0)
