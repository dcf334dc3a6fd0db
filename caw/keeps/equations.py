"""The calculations and answers of a text, as the numbers and operators in them, for comparing two texts.

A text is cut into clauses: at line ends, and at . ; ! ? : and , before a space outside brackets. A clause with "="
(or ≈, <=, \\leq, ...) is an equation, all of it: "so 2 + 3 = 5 apples" is 2 + 3 = 5. Words are not read, but for number
words, units behind a number, "minus" and "per cent". A number in another notation is the same: 1,200, 1{,}200 and
$1200.00.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation

Token = Decimal | str  # a number, or what stands between numbers
Tokens = tuple[Token, ...]

GROUPS = r"\d{1,3}(?:(?:,|\{,\}|\\,|[_\u00a0\u202f])\d{3})+(?!\d)"
NUMBER = rf"(?:{GROUPS}|\d+)(?:\.\d+)*(?:[eE][-+]?\d{{1,4}}(?![\w.]))?|(?<![\w.])\.\d+"
RELATION = r"\\(?:leq?|geq?|neq?|approx|equiv)(?![a-zA-Z])|[:<>!&~]?=+>?|[≈≠≤≥≡]"
# "one" is mostly no number in prose
NUMBER_WORDS = (
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|"
    "nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
)
# a number's unit, in one spelling: "6 hrs" is not taken for "6 hours"
UNITS = (
    "km|cm|mm|m|kg|mg|g|lbs?|oz|ml|l|mph|ft|kilomet(?:er|re)s?|centimet(?:er|re)s?|met(?:er|re)s?|miles?|feet|foot|"
    "inch(?:es)?|yards?|acres?|kilograms?|grams?|pounds?|ounces?|tons?|lit(?:er|re)s?|gallons?|seconds?|minutes?|"
    "hours?|days?|weeks?|months?|years?|cents?|degrees?"
)
WORDS = rf"zero|one|{NUMBER_WORDS}|hundred|thousand|million|billion|half|twice|thirds?|quarters?|dozen"
TOKEN = re.compile(
    rf"(?P<number>{NUMBER})|(?P<relation>{RELATION})"
    r"|(?P<sign>[\u2070-\u2079\u00b9\u00b2\u00b3\u2080-\u2089\u00bc-\u00be\u2150-\u215e€£¥₹√^×÷·])"
    r"|(?P<percent>\\?%|\bper ?cent\b)|\\(?P<named>[dt]?frac|sqrt|times|cdot|div|bmod|pmod)(?![a-zA-Z])"
    r"|(?P<root>\bsqrt\b|\bmod\b)|(?P<minus>\b(?:minus|negative)\b)|\b(?P<not>not) (?=[\d$(\\])"
    rf"|\b(?P<word>{WORDS})\b"
    rf"|(?:(?<=\d)|(?<=\d[ -]))(?P<units>{UNITS})\b"
    r"|(?P<between>(?<=\d)[:,](?=\d))|(?<=\d)(?P<unit>[a-zA-Z])(?![a-zA-Z])|(?<=\d ) ?(?P<cross>x)(?= \d)"
    r"|(?P<power>(?<=[\w)}])\*{1,2}(?=[\w({\\])|(?<=[\w)}] )\*{1,2}(?= [\w({\\]))"
    r"|(?P<slash>(?<=[\d)}])(?: ?//? ?)(?=[\w({\\])|(?<=[\w)}])//?(?=[\d({\\]))|(?P<plus>\+)"
    r"|(?P<dash>[-−–])(?= ?[$€£¥₹√]?[\d.(\\])|(?P<bracket>[()])|(?P<name>\b[a-zA-Z])(?= ?[:<>!&~]?=)",
    re.IGNORECASE,
)
CUT = re.compile(r"\n|[.;!?:,](?=\s|\Z)|[][()]")
HAS_RELATION = re.compile(RELATION)
SAME = {"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/", "times": "*", "cdot": "*", "div": "/", "x": "*",
        "dfrac": "frac", "tfrac": "frac", "√": "sqrt", "bmod": "mod", "pmod": "mod"}  # fmt: skip
SAME_RELATIONS = {"==": "=", "&=": "=", ":=": "=", "≠": "!=", "\\ne": "!=", "\\neq": "!=", "≤": "<=", "\\le": "<=",
                  "\\leq": "<=", "≥": ">=", "\\ge": ">=", "\\geq": ">=", "\\approx": "≈", "~=": "≈",
                  "\\equiv": "≡"}  # fmt: skip
RELATIONS = frozenset({"=", "===", "=>", "==>", "≈", "≡", "!=", "<=", ">="})
STATED = re.compile(
    r"(?:\b(?:answer|option|choice)\s{0,2}(?:is|:|=)|\banswer:?\*\*:?|####|\\boxed\s?\{)[\s:*$\\=]{0,8}"
    r"(?:therefore |thus |approximately |about )?",
    re.IGNORECASE,
)
# abbreviations whose full stop ends no sentence
TITLES = "".join(rf"(?<!\b{title})" for title in ("Dr", "Mr", "Mrs", "Ms", "St", "Prof", "Gen", "Sen", "Rep", "Lt"))
SENTENCE = re.compile(rf"{TITLES}[.!?](?!\S)|\n")  # where one ends
CHOICES = "ABCDEFGH"
CHOICE = re.compile(rf"\(?([{CHOICES}])" r"(?:\)|[\s.*_$}\]\"'’”]*(?:\Z|\b(?:because|since|as|for)\b))")
LISTED = re.compile(r",\s+(?:and |or )?[-−–$€£¥(\\]{0,3}\d")  # the next number of a list
VARIABLE = re.compile(r"(?<![a-zA-Z'’])[b-hj-zB-HJ-Z](?![a-zA-Z'’])")
UNFINISHED = re.compile(r"[\d.,eE{}\\_+\-$€£¥−]+\Z")  # a number at the end of a text, which may go on
LONGEST = 80  # characters behind a clause in which its result may stand, if it has none
CACHED = 64  # texts whose equations are known


@functools.lru_cache(CACHED)
def equations_of(text: str) -> tuple[Tokens, ...]:
    """Return the clauses of a text that have a relation, in order."""
    return tuple(tokens for tokens, _ in _equations(text))


@functools.lru_cache(CACHED)
def answers_of(text: str) -> tuple[Tokens, ...]:
    """Return the answers that a text states ("answer is", "####", \\boxed), in order.

    One with a number is its numbers and variables, up to the end of its clause or of a list of numbers; a letter from A
    to H alone or in brackets is a choice. Any other is its words, up to the end of the sentence ("the answer is Paris,
    France"), but not behind "####", which also begins a heading. If none has a number, the last clause with a number
    is returned behind them.
    """
    found, numbers = list[Tokens](), False
    for match in STATED.finditer(text):
        region = text[match.end() : _end_of_answer(text, match.end())]
        tokens = tokens_of(region)
        if choice := CHOICE.match(region):
            found.append((choice[1],))
            numbers = True
        elif has_number(tokens):
            found.append((*tokens, *VARIABLE.findall(region)))
            numbers = True
        elif not match[0].startswith("#"):
            sentence = SENTENCE.split(text[match.end() :], maxsplit=1)[0]
            if words := tuple(sentence.lower().split()):
                found.append(words)
    if numbers:
        return tuple(found)
    last: Tokens = ()
    for start, end in _clauses(text):
        tokens = tokens_of(text[start:end])
        if has_number(tokens):
            last = tokens
    return (*found, last) if last else tuple(found)


def has_number(tokens: Tokens) -> bool:
    """Tell whether a clause or an answer has a number in digits."""
    return any(isinstance(token, Decimal) or token[0].isnumeric() for token in tokens)  # "½", "1.2.3"


def _end_of_answer(text: str, since: int) -> int:
    """Where the clause ends that begins there, or the list of numbers: "3, 4 and 5"."""
    return next((cut for cut in _cuts(text, since) if not LISTED.match(text, cut)), len(text))


def may_go_on(equations: tuple[Tokens, ...], begun: str) -> bool:
    """Tell whether a text that begins so may still have these equations and no others."""
    begun = UNFINISHED.sub("", begun)
    ours = list(_equations(begun))
    if len(ours) > len(equations):
        return False
    for number, ((mine, closed), its) in enumerate(zip(ours, equations, strict=False)):
        if closed or number + 1 < len(ours):
            if mine != its:
                return False
        else:  # numbers only: what stands between them is read when the next one is there
            known = [token for token in mine if isinstance(token, Decimal)]
            if known != [token for token in its if isinstance(token, Decimal)][: len(known)]:
                return False
    return True


@functools.lru_cache(1024)
def tokens_of(text: str) -> Tokens:
    """Return the numbers of a text and what stands between them.

    Brackets are kept in pairs, around more than one token.
    """
    found: list[Token] = []
    opened: list[int] = []
    pairs: list[tuple[int, int]] = []
    for match in TOKEN.finditer(text):
        kind, said = str(match.lastgroup), match[match.lastgroup or 0]
        if kind == "number":
            found.append(_number(said))
        elif kind == "bracket":
            if said == "(":
                opened.append(len(found))
            elif opened and len(found) - opened[-1] > 1:
                pairs.append((opened.pop(), len(found)))
            elif opened:
                opened.pop()
        elif kind == "relation":
            found.append(SAME_RELATIONS.get(said.lower(), said))
        elif kind == "percent":
            found.append("%")
        elif kind == "minus":
            found.append("-")
        elif kind == "units":
            found.append(said.lower().removesuffix("s"))
        else:
            plain = said.strip().lower()
            found.append(SAME.get(plain, plain))
    for place, bracket in sorted(
        [(end, ")") for _, end in pairs] + [(start, "(") for start, _ in pairs], key=lambda each: -each[0]
    ):
        found.insert(place, bracket)
    return tuple(found)


def _number(text: str) -> Token:
    plain = re.sub(r"[,{}\\_\s]", "", text)
    try:
        return Decimal(plain)
    except InvalidOperation:  # 1.2.3
        return plain


def _equations(text: str) -> Iterator[tuple[Tokens, bool]]:
    """(tokens, whether more text could not change them) of each clause with a relation.

    A clause whose last relation has no number behind it goes on in the next ones, as far as `LONGEST`.
    """
    clauses, at = list(_clauses(text)), 0
    while at < len(clauses):
        start, end = clauses[at]
        tokens = tokens_of(text[start:end]) if HAS_RELATION.search(text, start, end) else ()
        limit = end + LONGEST
        while RELATIONS.intersection(_words(tokens)) and not _ended(tokens) and at + 1 < len(clauses):
            if clauses[at + 1][1] > limit:
                break
            at += 1
            end = clauses[at][1]
            tokens = tokens_of(text[start:end])
        if RELATIONS.intersection(_words(tokens)):
            yield tokens, end < len(text)
        at += 1


def _words(tokens: Tokens) -> set[str]:
    return {token for token in tokens if isinstance(token, str)}


def _ended(tokens: Tokens) -> bool:
    """Whether a number stands behind the last relation."""
    last = max(place for place, token in enumerate(tokens) if token in RELATIONS)
    return any(isinstance(token, Decimal) for token in tokens[last + 1 :])


def _clauses(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each clause."""
    start = 0
    for cut in _cuts(text, 0):
        yield start, cut
        start = cut + 1
    yield start, len(text)


def _cuts(text: str, since: int) -> Iterator[int]:
    """Places where a clause ends, from one on."""
    depth = 0
    for match in CUT.finditer(text, since):
        if match[0] in "[(":
            depth += 1
        elif match[0] in "])":
            depth = max(depth - 1, 0)
        elif match[0] != "," or not depth:
            depth = 0
            yield match.start()
