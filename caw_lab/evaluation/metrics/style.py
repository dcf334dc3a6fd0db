"""Repetition in a text: the effect of a mark, or a strong sampler, that grades do not show.

Shares of distinct n-grams are Li et al.'s (2016, arXiv 1510.03055), over words. They fall with length, so they are
computed per hundred words, which makes texts of different lengths comparable.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

WORD = re.compile(r"\w+(?:['’]\w+)*")
WINDOW = 100  # words
SIZES = (1, 2, 3)
REPEATED_SIZE = 4
DIGITS = 6


@dataclass(frozen=True)
class Style:
    """Of one text. words: how many it has.

    distinct: for n-grams of 1, 2 and 3 words the share of different ones among the n-grams of each hundred words, the
    mean over the whole hundreds (a shorter text counts as one). repeated: share of the 4-grams of the whole text that
    stood in it before. A text with too few words for one n-gram repeats nothing: 1 and 0.
    """

    words: int
    distinct: tuple[float, float, float]
    repeated: float


def style_of(text: str) -> Style:
    """Return the style of a text; words count in lower case. Numbers have 6 digits."""
    words = [word.lower() for word in WORD.findall(text)]
    starts = range(0, max(1, len(words) - WINDOW + 1), WINDOW)
    windows = [words[at : at + WINDOW] for at in starts]
    one, two, three = (sum(_distinct(window, n) for window in windows) / len(windows) for n in SIZES)
    repeated = 1 - _distinct(words, REPEATED_SIZE)
    return Style(len(words), (round(one, DIGITS), round(two, DIGITS), round(three, DIGITS)), round(repeated, DIGITS))


def _distinct(words: Sequence[str], size: int) -> float:
    """Return the share of different n-grams; 1 if there are none."""
    grams = list(zip(*(words[at:] for at in range(size)), strict=False))
    return len(set(grams)) / len(grams) if grams else 1.0
