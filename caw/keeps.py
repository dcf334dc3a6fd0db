"""What a guarded text must keep of the unmarked one: callables that take (unmarked, marked) and tell whether it did.

    number()            the answer: all stated numbers, otherwise the last one
    results()           the answer, and every number or expression behind "=", in order
    json(fields)        all parsed values: named fields equal, other strings free but for their digits
    parses("python")    code that parses

A reader of its own is any function of two texts:

    def passes_tests(unmarked: str, marked: str) -> bool:
        return run_tests(marked).ok or not run_tests(unmarked).ok

Nothing here knows a right answer: a wrong one is kept too.
"""

from __future__ import annotations

import ast
import functools
import json as json_format
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from caw.checks import require_choice
from caw.io.show import shown

Keeps = Callable[[str, str], bool]

NUMBER = r"-?\$?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)"
STATED_NUMBER = re.compile(rf"\banswer is:?\s*(?:\\\(|[*$(\s=])*({NUMBER})", re.IGNORECASE)
ANY_NUMBER = re.compile(NUMBER)
# What follows an equals sign: numbers, with the operators between them
AHEAD = r"(?:[\s*$€£¥\\({]|boxed\s*\{|[dt]?frac\s*\{)*"
AHEAD_IN_LINE = AHEAD.replace(r"[\s", r"[ \t")
SIGNED = r"(?P<sign>[-−]?)[$€£¥]?(?P<number>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,4})?|\.\d+)"
BEGUN = re.compile(rf"(?P<ahead>{AHEAD}){SIGNED}")
OPERATOR = r"\*\*|[-−+*/×÷·^]|\\times|\\cdot|\\div|\}\s*\{|(?<=\d)[,:](?=\d)"
GOES_ON = re.compile(  # in the same line
    rf"[^\S\n]*(?:(?P<close>[)}}]+)[^\S\n]*)?(?P<operator>{OPERATOR})(?P<ahead>{AHEAD_IN_LINE}){SIGNED}"
)
LAST = re.compile(rf"(?<![\w.)]){SIGNED}")
PER_CENT = re.compile(r"[^\S\n]*\\?%")
SAME_OPERATORS = {"−": "-", "×": "*", "·": "*", "÷": "/", "\\times": "*", "\\cdot": "*", "\\div": "/"}
# A number at the end of a text
UNFINISHED = re.compile(r"(?<![\d.,eE])[.,]?\d[\d.,eE]*(?:(?<=[eE])[-+][\d.,eE]*)?\Z")
MAY_GO_ON = re.compile(r"(?:\\[a-zA-Z]*|[^\w\n])*\Z")
ANSWER = re.compile(r"\banswer is:?\s*", re.IGNORECASE)
FENCED = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
STRING_OR_BRACKET = re.compile(r'"(?:[^"\\\\]|\\\\.)*"|[][{}]', re.DOTALL)
BRACKET, DIGITS = re.compile(r"[{[]"), re.compile(r"\d+")
CACHED = 64  # texts whose results or values are known
FREE_WORDS = 4  # a string of as many words is free text, where no fields are named
LANGUAGES = ("python",)


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


@dataclass(frozen=True)
class Expression:
    """Numbers and the operators between them, as they are read: "(3 + 4) * 2", "1/2", "5 %".

    parts: numbers and operators in turn. brackets: with their places among the parts, none for a number alone.
    """

    parts: tuple[Decimal | str, ...]
    brackets: tuple[tuple[int, str], ...] = ()


def expression_at(text: str, at: int) -> tuple[Expression, int] | None:
    """Read the expression that begins at a place; return it and its end, None if no number begins there."""
    found = BEGUN.match(text, at)
    if found is None:
        return None
    parts: list[Decimal | str] = []
    brackets: list[tuple[int, str]] = []
    if "frac" in found["ahead"]:
        parts.append("frac")
    while found is not None:
        brackets += [(len(parts), char) for char in found["ahead"] if char == "("]
        parts.append(_decimal(found))
        end = found.end()
        if found := GOES_ON.match(text, end):
            brackets += [(len(parts), char) for char in found["close"] or "" if char == ")"]
            operator = found["operator"]
            parts.append("/" if operator[0] == "}" else SAME_OPERATORS.get(operator, operator))
    if share := PER_CENT.match(text, end):
        parts.append("%")
        end = share.end()
    return Expression(tuple(parts), tuple(brackets) if len(parts) > 1 else ()), end


def _decimal(found: re.Match[str]) -> Decimal:
    return Decimal(("-" if found["sign"] else "") + found["number"].replace(",", ""))


@functools.lru_cache(CACHED)
def results_of(text: str) -> list[tuple[Expression, int]]:
    """Return the expressions behind the equals signs of a text, in order, with their ends."""
    found = (expression_at(text, match.end()) for match in re.finditer("=", text))
    return [each for each in found if each is not None]


def _answers(text: str) -> list[Expression]:
    """Return all answers that a text states; without one, its last number."""
    stated = [expression_at(text, match.end()) for match in ANSWER.finditer(text)]
    found = [each[0] for each in stated if each is not None]
    if found:
        return found
    numbers = list(LAST.finditer(text))
    return [Expression((_decimal(numbers[-1]),))] if numbers else []


def _same_answers(unmarked: str, marked: str) -> bool:
    one, other = answer_of(unmarked), answer_of(marked)
    same = one is None and other is None
    if one is not None and other is not None:
        same = same_number(one, other)
    return same and _answers(unmarked) == _answers(marked)


@dataclass(frozen=True)
class Number:
    """The answer is the same number, or neither text has one."""

    def __call__(self, unmarked: str, marked: str) -> bool:
        return _same_answers(unmarked, marked)

    def reads(self, unmarked: str) -> bool:
        """Tell whether there is something to keep."""
        return answer_of(unmarked) is not None


@dataclass(frozen=True)
class Results:
    """The answer is the same, and so is every number or expression behind an equals sign, in order."""

    def __call__(self, unmarked: str, marked: str) -> bool:
        theirs, ours = ([each for each, _ in results_of(text)] for text in (unmarked, marked))
        return theirs == ours and _same_answers(unmarked, marked)

    def reads(self, unmarked: str) -> bool:
        """Tell whether there is something to keep."""
        return answer_of(unmarked) is not None

    def possible(self, unmarked: str, begun: str) -> bool:
        """Tell whether a text that begins so may still keep everything; its last expression may be unfinished."""
        begun = UNFINISHED.sub("", begun)
        theirs, ours = [each for each, _ in results_of(unmarked)], results_of(begun)
        if len(ours) > len(theirs):
            return False
        for number, (mine, end) in enumerate(ours):
            its = theirs[number]
            if number + 1 == len(ours) and MAY_GO_ON.match(begun, end):
                if its.parts[: len(mine.parts)] != mine.parts:
                    return False
            elif mine != its:
                return False
        return True


@dataclass(frozen=True)
class Json:
    """The text holds the same JSON values, in order: objects have the same keys, arrays the same length, numbers,
    booleans and nulls are equal, and so are strings but free ones, which keep their digits.

    What begins with a bracket and does not parse stays as it is, up to the next value. A text that is JSON as a whole
    stays so.

    fields: names of the strings to keep, at any depth; all others are free. None = strings of four words and more are
    free. An unmarked text without JSON has nothing to keep.
    """

    fields: tuple[str, ...] | None = None

    def __call__(self, unmarked: str, marked: str) -> bool:
        theirs, ours = values_of(unmarked), values_of(marked)
        if unmarked == marked or not self.reads(unmarked):
            return True
        if theirs.whole and not ours.whole:
            return False
        try:
            return theirs.loose == ours.loose and self._same(theirs.values, ours.values, None)
        except RecursionError:  # too deep to compare
            return False

    def reads(self, unmarked: str) -> bool:
        """Tell whether there is something to keep."""
        theirs = values_of(unmarked)
        return bool(theirs.values) or any(theirs.loose)

    def _same(self, one: Any, other: Any, field: str | None) -> bool:
        if type(one) is not type(other):
            return False
        if isinstance(one, Pairs):
            return len(one.pairs) == len(other.pairs) and all(
                name == also and self._same(value, its, name)
                for (name, value), (also, its) in zip(one.pairs, other.pairs, strict=True)
            )
        if isinstance(one, list):
            return len(one) == len(other) and all(self._same(a, b, field) for a, b in zip(one, other, strict=True))
        if isinstance(one, float):  # NaN and infinities; all others are decimals
            return repr(one) == repr(other)
        return bool(one == other) or (isinstance(one, str) and self._free(one, other, field))

    def _free(self, one: str, other: str, field: str | None) -> bool:
        if DIGITS.findall(one) != DIGITS.findall(other):
            return False
        if self.fields is not None:
            return field not in self.fields and bool(other.strip())
        return len(one.split()) >= FREE_WORDS and len(other.split()) >= FREE_WORDS


@dataclass(frozen=True)
class Pairs:
    """The pairs of a JSON object in order, names that occur twice included."""

    pairs: list[tuple[str, Any]]


@dataclass(frozen=True)
class Values:
    """values: the JSON values of a text. loose: before, between and behind them, what begins with a bracket. whole:
    whether all of the text is one value."""

    values: list[Any]
    loose: list[str]
    whole: bool


@functools.lru_cache(CACHED)
def values_of(text: str) -> Values:
    """Return the JSON values of a text: all of it, or what parses from a bracket on; what one holds is not another."""
    decoder = json_format.JSONDecoder(object_pairs_hook=Pairs, parse_float=Decimal)
    try:
        return Values([decoder.decode(text)], ["", ""], whole=True)
    except (ValueError, RecursionError):
        pass
    values: list[Any] = []
    loose: list[str] = []
    since, at = 0, 0
    hopeless: set[int] = set()  # brackets that do not parse either
    while found := BRACKET.search(text, at):
        try:
            if found.start() in hopeless:
                raise ValueError
            value, end = decoder.raw_decode(text, found.start())
        except json_format.JSONDecodeError as error:
            hopeless |= _open_at(text, found.start(), error.pos)
            at = found.end()
            continue
        except (ValueError, RecursionError):
            at = found.end()
            continue
        values.append(value)
        loose.append(_loose(text[since : found.start()]))
        since = at = end
    return Values(values, [*loose, _loose(text[since:])], whole=False)


def _open_at(text: str, start: int, end: int) -> set[int]:
    """Return the brackets of JSON from `start` on that are open where it stops being JSON: each fails there too."""
    opened: list[int] = []
    for found in STRING_OR_BRACKET.finditer(text, start, end):
        if found[0] in "[{":
            opened.append(found.start())
        elif found[0] in "]}" and opened:
            opened.pop()
    return set(opened)


def _loose(text: str) -> str:
    found = BRACKET.search(text)
    return text[found.start() :] if found else ""


@dataclass(frozen=True)
class Parses:
    """The code parses: the fenced blocks of the text, or all of it. Unmarked code that does not has nothing to keep."""

    language: str = "python"

    def __call__(self, unmarked: str, marked: str) -> bool:
        return not _parses(unmarked) or (_parses(marked) and len(_code(unmarked)) == len(_code(marked)))

    def reads(self, unmarked: str) -> bool:
        """Tell whether there is something to keep."""
        return _parses(unmarked)


def _code(text: str) -> list[str]:
    return FENCED.findall(text) or [text]


def _parses(text: str) -> bool:
    try:
        for part in _code(text):
            ast.parse(part)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def number() -> Keeps:
    """Keep the answer: the stated number, otherwise the last one."""
    return Number()


def results() -> Keeps:
    """Keep the answer and every number behind "=", in order."""
    return Results()


def json(fields: Sequence[str] | None = None) -> Keeps:
    """Keep the shape of JSON, its numbers, booleans and nulls, and its strings except free ones.

    Args:
        fields: names of the strings to keep, at any depth; all other strings are free text. None = strings of four
            words and more are free.

    Raises TypeError for anything but a list of names.
    """
    if fields is None:
        return Json()
    if isinstance(fields, str) or not isinstance(fields, Sequence) or not all(isinstance(each, str) for each in fields):
        raise TypeError(f"fields must be a list of names, got {shown(fields)}; give e.g. ['name', 'unit']")
    return Json(tuple(fields))


def parses(language: str = "python") -> Keeps:
    """Keep code that parses. Raises ValueError for a language other than "python"."""
    require_choice("language", language, LANGUAGES, "python")
    return Parses(language)


def reads(reader: Keeps, unmarked: str) -> bool:
    """Tell whether a reader finds something to keep in a text; a function of the caller's own always does."""
    return reader.reads(unmarked) if isinstance(reader, Number | Results | Json | Parses) else True


NAMED: dict[str, Callable[[], Keeps]] = {
    "number": number,
    "results": results,
    "json": json,
    "python": parses,
}
