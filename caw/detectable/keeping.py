"""What a guarded text must keep of its unmarked one: a reader's verdict on each text, asked once and remembered."""

from collections.abc import Collection
from typing import Any

import numpy as np

from caw.keeps import Content, Keeps, reads
from caw.keeps.parts import content_of

REJECTED = "keeps must return True for the unmarked text as both, got False; compare the texts"


class Keeping:
    """Tells of a text whether it keeps what it must of the unmarked one.

    What a reader finds nothing of keeps its content instead, and what the reader compares all the same: JSON without
    any of the named fields its shape, numbers and booleans. A reader of the caller's that returns None is not asked
    again.

    Args:
        reader: of the guard. names: words that are names even where they begin a sentence.

    error: the last one of the caller's own reader, else empty. lost: the reader rejects the unmarked text itself, or
    raised on it twice, so that no other can be kept.
    """

    def __init__(self, reader: Keeps, unmarked: str, names: Collection[str]) -> None:
        self.reader = None if isinstance(reader, Content) else reader  # which does not know the prompt's names
        self.unmarked, self.names, self.content = unmarked, names, content_of(unmarked, names)
        self.error = ""
        self.verdicts: dict[str, bool | None] = {}
        something = self.reader is not None and reads(self.reader, unmarked)
        verdict = self._said(unmarked) if something else None
        if verdict is False and self.error:  # once more: tests of the caller's may have run out of time
            del self.verdicts[unmarked]
            self.error = ""
            verdict = self._said(unmarked)
        self.lost = verdict is False
        if self.lost:
            self.error = self.error or REJECTED
        self.nothing = self.reader is not None and verdict is None
        self.silent = self.reader is None or (self.nothing and something)

    def __call__(self, text: str) -> bool:
        if (self.reader is None or self.nothing) and content_of(text, self.names) != self.content:
            return False
        return self.silent or bool(self._said(text))

    def verdict(self, text: str) -> bool | None:
        """What a receipt says of the text that leaves; None = there was nothing of that kind to keep."""
        if self.nothing and text != self.unmarked:
            return None
        return self.verdicts.get(text) is not False

    def _said(self, text: str) -> bool | None:
        """Return what the reader says of a text, None if it has nothing to keep; False if it raises."""
        assert self.reader is not None
        if text not in self.verdicts:  # the reader may run the caller's tests
            try:
                self.verdicts[text] = _verdict(self.reader(self.unmarked, text))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a caller's own function, whose code may end with SystemExit: not kept
                self.error = f"{type(error).__name__}: {error}"
                self.verdicts[text] = False
        return self.verdicts[text]


def _verdict(answer: Any) -> bool | None:
    """Return what a caller's reader says of a text. TypeError for no verdict: a failure's message must not count."""
    if answer is None or isinstance(answer, bool | np.bool_):
        return None if answer is None else bool(answer)
    raise TypeError(f"keeps must return True or False, got {type(answer).__name__}; use bool(...)")
