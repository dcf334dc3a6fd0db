"""Key segments by form: numbers, operators, currency, names, answer letters. No model, no network."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from caw_lab.training.labelers.base import LabelError, Spans, join_spans
from caw_lab.training.labels import LabelledText

NUMBER = re.compile(r"\d+(?:[.,:]\d+)*|(?<!\d)\.\d+")
NUMBER_WORDS = re.compile(
    r"\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|million"
    r"|half|halves|thirds?|quarters?|fourths?|fifths?|once|twice|thrice|double[ds]?|triple[ds]?|dozens?)\b",
    re.IGNORECASE,
)
# a hyphen or slash inside a word is none; x is one between numbers only
OPERATOR = re.compile(
    r"[+*×÷=<>^%]|(?<![A-Za-z])[-−–/]|[-−–/](?![A-Za-z])|(?<=[\d)])\s*[xX]\s*(?=[$€£¥₹(.\d])|\((?=[$\d])|(?<=\d)\)"
)
CURRENCY = re.compile(r"[$€£¥₹¢]")
CAPITALISED = re.compile(r"\b[A-Z][a-z]+\b")
SENTENCE_START = re.compile(r"(?:^|[.!?:]\s+|\n\s*)$")
ANSWER_LETTER = re.compile(r"(?<=\()[A-J](?=\))|(?i:\banswer(?: is|:)) *\(?([A-J])\b")


def _matches(pattern: re.Pattern[str]) -> Callable[[LabelledText], Iterator[tuple[int, int]]]:
    def find(document: LabelledText) -> Iterator[tuple[int, int]]:
        for match in pattern.finditer(document.solution):
            yield match.span(match.lastindex or 0)

    return find


def _names(document: LabelledText) -> Iterator[tuple[int, int]]:
    """Return capitalised words that occur, in question or answer, somewhere other than at a sentence start."""
    inside = {
        match.group()
        for text in (document.question, document.solution)
        for match in CAPITALISED.finditer(text)
        if not SENTENCE_START.search(text[: match.start()])
    }
    for match in CAPITALISED.finditer(document.solution):
        if match.group() in inside:
            yield match.span()


KINDS: dict[str, Callable[[LabelledText], Iterator[tuple[int, int]]]] = {
    "numbers": _matches(NUMBER),
    "number-words": _matches(NUMBER_WORDS),
    "operators": _matches(OPERATOR),
    "currency": _matches(CURRENCY),
    "names": _names,
    "answer-letters": _matches(ANSWER_LETTER),
}


@dataclass(frozen=True)
class LexicalLabeler:
    """Labels everything of these kinds (see KINDS); neighbours separated only by blanks become one span."""

    kinds: tuple[str, ...] = tuple(KINDS)
    parallel = False

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in KINDS:
                raise ValueError(f"kinds must be of {', '.join(KINDS)}, got {kind!r}; choose from these")
        if not self.kinds:
            raise ValueError(f"expected at least one of the kinds {', '.join(KINDS)}, got none; name one")

    def describe(self) -> dict[str, Any]:
        return {"labeler": "lexical", "kinds": list(self.kinds)}

    def label(self, document: LabelledText) -> Spans:
        spans = [span for kind in self.kinds for span in KINDS[kind](document)]
        if not spans:
            raise LabelError(f"expected {', '.join(self.kinds)} in the text, found none; label it another way")
        return join_spans(document.solution, spans)
