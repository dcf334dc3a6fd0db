"""Read answers from texts as other harnesses do: a stated answer first, otherwise the last possible one.

lm-evaluation-harness grades GSM8K by "The answer is N." (strict) and by the last number (flexible),
chain-of-thought-hub by the last number; both read MMLU's letter from "the answer is (X)". Here a stated answer counts;
without one, the last number, or the last letter in parentheses. `Graded.extraction` says which it was.

`Graded.text` ends with the sentence that states the answer. A mark that makes end tokens less likely lets texts run on
after it, and detection would then use words that were not asked for and that no grade sees. Without a stated answer the
whole text counts.
"""

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

from caw_lab.evaluation.tasks.base import Graded, last, up_to_sentence_end

NUMBER = r"-?\$?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)"
STATED_NUMBER = re.compile(rf"\banswer is:?\s*(?:\\\(|[*$(\s=])*({NUMBER})", re.IGNORECASE)
ANY_NUMBER = re.compile(NUMBER)
# a small letter counts only in parentheses: "the answer is a kinship system" states none
STATED_LETTER = re.compile(r"(?i:\banswer is:?)[*\s]*(?:\(([A-Ja-j])\)|\(?([A-J])\b)")
ANY_LETTER = re.compile(r"\(([A-J])\)")


def plain_number(text: str) -> str:
    """Return a number without thousands separators and dollar signs."""
    return text.replace(",", "").replace("$", "")


def same_number(one: str, other: str) -> bool:
    """Tell whether two texts are the same number: "1,200.00" is "1200"."""
    try:
        return Decimal(plain_number(one)) == Decimal(plain_number(other))
    except InvalidOperation:
        return False


def answer_of(text: str) -> str | None:
    """Return the stated number of a text, otherwise its last one; None if it has none."""
    stated = STATED_NUMBER.search(text)
    if stated:
        return stated[1]
    found = ANY_NUMBER.findall(text)
    return found[-1] if found else None


def grade_number(text: str, gold: str) -> Graded:
    """Grade a number: "1,200.00" equals "1200"; `$` and thousands separators are ignored."""
    stated = STATED_NUMBER.search(text)
    if stated:
        return _number(stated[1], "stated", gold, up_to_sentence_end(text, stated.end()))
    found = last(ANY_NUMBER.findall(text))
    return _number(found, "last", gold, text) if found else Graded(None, None, False, text.rstrip())


def _number(answer: str, how: str, gold: str, text: str) -> Graded:
    plain = plain_number(answer)
    return Graded(plain, how, same_number(plain, gold), text.rstrip())


def grade_letter(text: str, gold: str) -> Graded:
    stated = STATED_LETTER.search(text)
    if stated:
        return _graded((stated[1] or stated[2]).upper(), "stated", gold, up_to_sentence_end(text, stated.end()))
    found = last(ANY_LETTER.findall(text))
    return _graded(found, "last" if found else None, gold, text.rstrip())


def grade_exact(text: str, gold: str) -> Graded:
    """Grade the whole text, without the space at its ends."""
    return _graded(text.strip() or None, "stated" if text.strip() else None, gold.strip(), text.rstrip())


def grade_contains(text: str, gold: str) -> Graded:
    """Right if the gold answer occurs in the text, in any case; only an empty text cannot be read."""
    found = gold.strip() if gold.strip().casefold() in text.casefold() else ""
    return Graded(
        found if text.strip() else None, "stated" if found else None, bool(found), text.rstrip()
    )  # fmt: skip


def _graded(answer: str | None, how: str | None, gold: str, text: str) -> Graded:
    return Graded(answer, how, answer is not None and answer == gold, text)


GRADES: dict[str, Callable[[str, str], Graded]] = {
    "number": grade_number,
    "letter": grade_letter,
    "exact": grade_exact,
    "contains": grade_contains,
}
