"""Find and replace words of a text without touching the punctuation around them."""

from __future__ import annotations

import re
from dataclasses import dataclass

# letters only, not part of a number, a name with digits or a contraction
PLAIN_WORD = re.compile(r"(?<![\w'’])[^\W\d_]+(?![\w'’])")
# never replaced: WordNet knows "he" as helium, "in" as an inch and "a" as a vitamin
_FUNCTION_WORDS = """
a about above after again against all am an and any are as at be because been before being below between both
but by can cannot could did do does doing down during each either every few for from further had has have having he
her here hers herself him himself his how i if in into is it its itself just may me might more most must my myself
neither no nor not of off on once only or other our ours ourselves out over own per same shall she should so some
such than that the their theirs them themselves then there these they this those though through thus to too under
until unless up upon us very was we were what when where whether which while who whom whose why will with within
without would yet you your yours yourself yourselves
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


@dataclass(frozen=True)
class Word:
    """text[start:end], a plain word of letters."""

    start: int
    end: int
    text: str


def count_words(text: str) -> int:
    """Number of parts between white space; every attack's rate is a share of it."""
    return len(text.split())


def plain_words(text: str) -> list[Word]:
    """Words of letters that are no function words: "apples" in '"apples,"', "apples" and "pears" in "apples/pears"."""
    found = (Word(m.start(), m.end(), m.group()) for m in PLAIN_WORD.finditer(text))
    return [word for word in found if word.text.lower() not in FUNCTION_WORDS]


def keep_case(original: str, substitute: str) -> str:
    """The substitute in the original's case: as it is, Capitalised or ALL CAPITALS."""
    if len(original) > 1 and original.isupper():
        return substitute.upper()
    return substitute[:1].upper() + substitute[1:] if original[:1].isupper() else substitute


def replace_words(text: str, substitutes: dict[Word, str]) -> str:
    """The text with these words replaced and everything else unchanged."""
    parts, done = [], 0
    for word in sorted(substitutes, key=lambda w: w.start):
        parts += [text[done : word.start], keep_case(word.text, substitutes[word])]
        done = word.end
    return "".join([*parts, text[done:]])
