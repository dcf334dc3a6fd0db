"""Content of a text, in order: its numbers, names and code; what a change of wording may not touch."""

from __future__ import annotations

import re
from collections.abc import Collection

from caw.keeps import ANY_NUMBER, plain_number

NAME = re.compile(r"\b[^\W\d_][\w'-]*")
BEGINS = re.compile(r"(?:\A|[.!?:\n])[\s\"'*#>(\[-]*\Z")  # what is before the first word of a sentence or an item
FENCE = "```"
NO_NAMES = {"I", "I'm", "I'll", "I've", "I'd"}
LOOKED_BACK = 12  # characters before a word that tell whether it begins a sentence


def names_in(text: str) -> set[str]:
    """Return the words with a capital that do not begin a sentence or an item."""
    return {word for word, begins in _capitalised(text) if not begins}


def content_of(text: str, names: Collection[str] = ()) -> tuple[tuple[str, ...], ...]:
    """Return (numbers, names, code) of a text, each in the order of the text.

    names: words that are names even where they begin a sentence. Numbers are without thousands separators and dollar
    signs; code is what stands in fenced blocks, word for word.
    """
    numbers = tuple(plain_number(number) for number in ANY_NUMBER.findall(text))
    known = tuple(word for word, begins in _capitalised(text) if not begins or word in names)
    return numbers, known, tuple(part.strip() for part in text.split(FENCE)[1::2])


def same_content(one: str, other: str, names: Collection[str] = ()) -> bool:
    """Tell whether two texts have the same numbers, names and code, in the same order."""
    return content_of(one, names) == content_of(other, names)


def _capitalised(text: str) -> list[tuple[str, bool]]:
    """Return each word with a capital, and whether it begins a sentence."""
    found = []
    for match in NAME.finditer(text):
        word = match[0]
        if word[0].isupper() and word not in NO_NAMES:
            found.append((word, bool(BEGINS.search(text[max(match.start() - LOOKED_BACK, 0) : match.start()]))))
    return found
