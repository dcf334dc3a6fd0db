"""Word-D: random words are deleted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from caw.evaluation.attacks.base import Attacked, RateAttack, draw_count

GAP_AND_WORD = re.compile(r"(\s*)(\S+)")
SENTENCE_MARKS = ".,;:!?"


@dataclass(frozen=True)
class WordD(RateAttack):
    """Deletes this share of the words (parts between white space).

    The marks .,;:!? after a deleted word stay, after the word before it. Line breaks stay.
    """

    kind: ClassVar[str] = "word-d"
    stream: ClassVar[str] = "word-d"

    def apply(self, text: str, rng: np.random.Generator) -> Attacked:
        parts = GAP_AND_WORD.findall(text)
        order = rng.permutation(len(parts))
        gone = set(order[: draw_count(self.rate, len(parts), rng)].tolist())
        out, pending = "", ""
        for i, (gap, word) in enumerate(parts):
            if "\n" not in pending:  # of two gaps that meet, the one with a line break stays
                pending = gap
            if i in gone:
                marks = word[len(word.rstrip(SENTENCE_MARKS)) :]
                if marks != word and out and out[-1] not in SENTENCE_MARKS:
                    out += marks
            else:
                out += (pending if out else parts[0][0]) + word
                pending = ""
        return Attacked(out + text[len(text.rstrip()) :] if out else "", len(gone), len(parts))
