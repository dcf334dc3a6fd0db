"""What a guarded text must keep of the unmarked one: callables that take (unmarked, marked) and tell whether it did.

    number()            the answer: all that are stated, otherwise the last clause with a number
    results()           the answer, and every equation, both sides, in order; fenced code as it is
    json(fields)        all parsed values: named fields equal, other strings free but for their numbers
    parses("python")    code that parses
    content()           numbers, names, code, addresses, comparisons, negations, answers (`parts.py`), not wording

A reader of its own is any function of two texts:

    def passes_tests(unmarked: str, marked: str) -> bool:
        return run_tests(marked).ok or not run_tests(unmarked).ok

Nothing here knows a right answer: a wrong one is kept too.
"""

import ast
import functools
import json as json_format
import re
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from caw.checks import require_choice
from caw.io.show import shown
from caw.keeps.equations import CHOICES, answers_of, equations_of, has_number
from caw.keeps.parts import names_in, same_content

Keeps = Callable[[str, str], bool]

FENCED = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL)
BRACKET, ANY_BRACKET = re.compile(r"[{[]"), re.compile(r"[][{}]")
DEEPEST = 100  # levels of JSON that are read
VERDICT = re.compile(r"\W*(yes|no|true|false|correct|incorrect)\b(?=[\s.,;:!*]|\Z)", re.IGNORECASE)
IN_WORDS = re.compile(r"(?:(?<!\w)[-−])?\d+(?:[.,:]\d+)*|[\u2070-\u2079\u00b9\u00b2\u00b3\u00bc-\u00be]")  # numbers
CACHED = 64  # texts whose results or values are known
FREE_WORDS = 4  # a string of as many words is free text, where no fields are named
LANGUAGES = ("python",)
PYTHON = ("python", "python3", "py", "")  # tags of fenced blocks


@dataclass(frozen=True)
class Number:
    """The stated answers are the same, without one the last clause with a number, or neither text has one; and both
    begin with the same yes or no, if one does.

    Where words alone are stated ("the answer is yes"), the content is the same too: no number says what it rests on.
    """

    def __call__(self, unmarked: str, marked: str) -> bool:
        answers = answers_of(unmarked)
        same = answers == answers_of(marked) and _verdict_of(unmarked) == _verdict_of(marked)
        # a number, or a choice from A to H, says what it rests on
        plain = not answers or any(has_number(each) or each[0] in tuple(CHOICES) for each in answers)
        return same and (plain or same_content(unmarked, marked, names_in(unmarked)))

    def reads(self, unmarked: str) -> bool:
        return bool(answers_of(unmarked))


def _verdict_of(text: str) -> str:
    """The word of agreement or denial that a text begins with, else nothing."""
    found = VERDICT.match(text)
    return found[1].lower() if found else ""


@dataclass(frozen=True)
class Results:
    """The answer is the same, as for `Number`, and so is every equation, both sides of it, in order; fenced code is
    unchanged."""

    def __call__(self, unmarked: str, marked: str) -> bool:
        if [code for _, code in blocks_of(unmarked)] != [code for _, code in blocks_of(marked)]:
            return False
        return equations_of(unmarked) == equations_of(marked) and Number()(unmarked, marked)

    def reads(self, unmarked: str) -> bool:
        return bool(answers_of(unmarked) or equations_of(unmarked) or blocks_of(unmarked))


@dataclass(frozen=True)
class Json:
    """The text holds the same JSON values, in order: objects have the same keys, arrays the same length, numbers,
    booleans and nulls are equal, and so are strings but free ones, which keep their numbers.

    What begins with a bracket and does not parse stays as it is, up to the next value. A text that is JSON as a whole
    stays so.

    fields: names of the values to keep, at any depth, with all that they hold; strings elsewhere are free. None =
    strings of four words and more are free. A string that is itself a JSON object or array is compared as one. An
    unmarked text without JSON, or without any of these fields, has nothing to keep.
    """

    fields: tuple[str, ...] | None = None

    def __call__(self, unmarked: str, marked: str) -> bool:
        theirs, ours = values_of(unmarked), values_of(marked)
        if unmarked == marked or not (theirs.values or any(theirs.loose)):
            return True
        if theirs.whole and not ours.whole:
            return False
        return theirs.loose == ours.loose and self._same(theirs.values, ours.values, False)

    def reads(self, unmarked: str) -> bool:
        theirs = values_of(unmarked)
        return (bool(theirs.values) and (not self.fields or self._named(theirs.values))) or any(theirs.loose)

    def _named(self, value: Any) -> bool:
        """Whether one of the fields is there."""
        if isinstance(value, Pairs):
            return any(name in (self.fields or ()) or self._named(each) for name, each in value.pairs)
        return isinstance(value, list) and any(map(self._named, value))

    def _same(self, one: Any, other: Any, kept: bool) -> bool:
        """kept: whether they are in a field that is kept."""
        if type(one) is not type(other):
            return False
        if isinstance(one, Pairs):
            return len(one.pairs) == len(other.pairs) and all(
                name == also and self._same(value, its, kept or name in (self.fields or ()))
                for (name, value), (also, its) in zip(one.pairs, other.pairs, strict=True)
            )
        if isinstance(one, list):
            return len(one) == len(other) and all(self._same(a, b, kept) for a, b in zip(one, other, strict=True))
        if isinstance(one, float):  # NaN and infinities; all others are decimals
            return repr(one) == repr(other)
        return bool(one == other) or (isinstance(one, str) and not kept and self._free(one, other))

    def _free(self, one: str, other: str) -> bool:
        theirs = values_of(one)
        if theirs.whole and isinstance(theirs.values[0], Pairs | list):  # arguments of a call, for instance
            ours = values_of(other)
            return ours.whole and self._same(theirs.values, ours.values, False)
        if IN_WORDS.findall(one) != IN_WORDS.findall(other):
            return False
        if self.fields is not None:
            return bool(other.strip())
        return len(one.split()) >= FREE_WORDS and len(other.split()) >= FREE_WORDS


@dataclass(frozen=True)
class Unread:
    """A number that no decimal can be, such as 1e99999999999999999999."""

    text: str


def _json_number(text: str) -> Decimal | Unread:
    try:
        return Decimal(text)
    except InvalidOperation:
        return Unread(text)


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
    """Return the JSON values of a text: all of it, or what parses from a bracket on; what one holds is not another.

    A text with brackets in more levels than `DEEPEST` has none: it stays as it is from its first bracket on.
    """
    depth = deepest = 0
    for each in ANY_BRACKET.findall(text):
        depth = depth + 1 if each in "[{" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    if deepest > DEEPEST:
        return Values([], [_loose(text)], whole=False)
    decoder = json_format.JSONDecoder(object_pairs_hook=Pairs, parse_float=_json_number, parse_int=_json_number)
    try:
        return Values([decoder.decode(text)], ["", ""], whole=True)
    except ValueError:
        pass
    values: list[Any] = []
    loose: list[str] = []
    since, at = 0, 0
    hopeless: set[int] = set()  # brackets that do not parse either
    while found := BRACKET.search(text, at):
        at = found.end()
        if found.start() in hopeless:
            continue
        try:
            value, end = decoder.raw_decode(text, found.start())
        except json_format.JSONDecodeError as error:
            hopeless |= _open_at(text, found.start(), error.pos)
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
    """The code parses: each fenced block that did, or all of a text without one; other blocks stay word for word.

    Unmarked text without code that parses has nothing to keep.
    """

    language: str = "python"

    def __call__(self, unmarked: str, marked: str) -> bool:
        theirs, ours = blocks_of(unmarked), blocks_of(marked)
        if not theirs:
            return not _parses(unmarked) or (_parses(marked) and not ours)
        return [tag for tag, _ in theirs] == [tag for tag, _ in ours] and all(
            _parses(its) if tag in PYTHON and _parses(code) else code == its
            for (tag, code), (_, its) in zip(theirs, ours, strict=True)
        )

    def reads(self, unmarked: str) -> bool:
        blocks = blocks_of(unmarked)
        return any(tag in PYTHON and _parses(code) for tag, code in blocks) if blocks else _parses(unmarked)


@functools.lru_cache(CACHED)
def blocks_of(text: str) -> list[tuple[str, str]]:
    """Return (language, code without its indentation) of each fenced block of a text."""
    return [(match[1].strip().lower(), textwrap.dedent(match[2])) for match in FENCED.finditer(text)]


def code_of(text: str) -> list[str]:
    """Return the Python of a text: its fenced blocks of Python or of no language; all of it if nothing is fenced."""
    blocks = blocks_of(text)
    return [code for tag, code in blocks if tag in PYTHON] if blocks else [text]


def _parses(text: str) -> bool:
    try:
        with warnings.catch_warnings():  # an odd escape in a string is not what is asked
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


@dataclass(frozen=True)
class Content:
    """The same numbers, equations, names, code, addresses, comparisons, negations and stated answers, in one order."""

    def __call__(self, unmarked: str, marked: str) -> bool:
        return same_content(unmarked, marked, names_in(unmarked))


def number() -> Keeps:
    """Keep the answer: all that are stated ("the answer is", "####", \\boxed), else the last clause with a number."""
    return Number()


def results() -> Keeps:
    """Keep the answer and every equation, both sides of "=", in order, and fenced code word for word."""
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


def content() -> Keeps:
    """Keep numbers, equations, names inside a sentence, code, addresses, comparisons, negations and stated answers."""
    return Content()


def reads(reader: Keeps, unmarked: str) -> bool:
    """Tell whether a reader finds something to keep in a text; a function of the caller's own always does."""
    return reader.reads(unmarked) if isinstance(reader, Number | Results | Json | Parses) else True


NAMED: dict[str, Callable[[], Keeps]] = {
    "number": number, "results": results, "json": json, "python": parses, "content": content,
}  # fmt: skip
