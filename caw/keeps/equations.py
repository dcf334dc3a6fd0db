"""The calculations and answers of a text, as the numbers and operators in them, for comparing two texts.

A text is cut into clauses: at line ends, and at . ; ! ? : and , before a space outside brackets. A clause with "="
(or ≈, <=, \\leq, ...) is an equation, all of it: "so 2 + 3 = 5 apples" is 2 + 3 = 5. Words are not read, but for number
words, units behind a number, "minus" and "per cent". A number in another notation is the same: 1,200, 1{,}200 and
$1200.00.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from itertools import chain, zip_longest

Token = Decimal | str  # a number, or what stands between numbers
Tokens = tuple[Token, ...]

GROUPS = r"\d{1,3}(?:(?:,|\{,\}|\\,|[_\u00a0\u202f])\d{3})+(?!\d)"
NUMBER = rf"(?:{GROUPS}|\d+)(?:\.\d+)*(?:[eE][-+]?\d{{1,4}}(?![\w.]))?|(?<![\w.])\.\d+"
SIDE = r"(?:(?<=[\d)}\]])|(?<=[\d)}\]] )|(?<=\b[a-zA-Z])|(?<=\b[a-zA-Z] ))"
RELATION = (
    r"\\(?:leq?|geq?|neq?|lt|gt|approx|equiv)(?![a-zA-Z])|[:<>!&~]?=+>?|[≈≠≤≥≡]"
    rf"|{SIDE}[<>](?= ?(?:[-−+]?[$€£¥√]?[\d.(\\]|[a-zA-Z]\b))"
)
# "one" is mostly no number in prose
NUMBER_WORDS = (
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|"
    "nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
)
# a number's unit, in one spelling: "6 hrs" is not taken for "6 hours"
UNITS = (
    "km|cm|mm|m|kg|mg|g|lbs?|oz|ml|l|mph|ft|kilomet(?:er|re)s?|centimet(?:er|re)s?|met(?:er|re)s?|miles?|feet|foot|"
    "inch(?:es)?|yards?|acres?|kilograms?|grams?|pounds?|ounces?|tons?|lit(?:er|re)s?|gallons?|seconds?|minutes?|"
    "hours?|days?|weeks?|months?|years?|cents?|degrees?|euros?|yen|rupees?|roubles?|rubles?|yuan|francs?|"
    "pesos?|points?|times"
)
# what turns an answer round, next to its number: without its full stops
BESIDE = r"[ap]\.?m|b\.?c(?:\.?e)?|a\.?d|c\.?e|more|less|fewer|greater|higher|lower|before|after|ago|late|early|o'clock"
BOUND = (
    r"at least|at most|no(?:t)? (?:more|less|fewer|later|earlier) than|(?:more|less|fewer|greater|higher|lower|larger|"
    r"smaller|older|younger|longer|shorter|better|worse|later|earlier) than|up to|under|over|below|above|before|after|"
    r"until|since|exceeds?|within|beyond"
)
WORDS = rf"zero|one|{NUMBER_WORDS}|hundred|thousand|million|billion|half|twice|thirds?|quarters?|dozen"
TOKEN = re.compile(
    rf"(?P<number>{NUMBER})|(?P<relation>{RELATION})"
    r"|(?P<sign>[\u2070-\u2079\u00b9\u00b2\u00b3\u2080-\u2089\u00bc-\u00be\u2150-\u215e€£¥₹√^×÷·±°])"
    r"|(?P<percent>\\?%|\bper ?cent\b)|\\(?P<named>[dt]?frac|sqrt|times|cdot|div|bmod|pmod)(?![a-zA-Z])"
    r"|(?P<root>\bsqrt\b|\bmod\b)|(?P<minus>\b(?:minus|negative)\b)|\b(?P<not>not) (?=[\d$(\\])"
    rf"|\b(?P<bound>{BOUND}) (?=[-−$€£¥√(\\]{{0,2}}\d)|(?:(?<=\d)|(?<=\d ))(?P<beside>{BESIDE})\b"
    rf"|\b(?P<word>{WORDS})\b"
    rf"|(?:(?<=\d)|(?<=\d[ -]))(?P<units>{UNITS})\b"
    r"|(?P<between>(?<=\d)[:,](?=\d))|(?<=\d)(?P<unit>[a-zA-Z])(?![a-zA-Z])|(?<=\d ) ?(?P<cross>x)(?= \d)"
    r"|(?P<power>(?<=[\w)}%])\*{1,2}(?=[\w({\\$€£¥])|(?<=[\w)}%] )\*{1,2}(?= [\w({\\$€£¥]))"
    r"|(?P<slash>(?<=[\d)}%])(?: ?//? ?)(?=[\w({\\$€£¥])|(?<=[\w)}])//?(?=[\d({\\$€£¥]))|(?P<plus>\+)"
    r"|(?P<dash>[-−–])(?= ?[$€£¥₹√]?[\d.(\\])|(?P<bracket>[()])|(?P<name>\b[a-zA-Z])(?= ?(?:[:<>!&~]?=|[<>]))",
    re.IGNORECASE,
)
CUT = re.compile(r"\n|[.;!?:,](?=\s|\Z)|[][()]")
HAS_RELATION = re.compile(RELATION)
SAME = {"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/", "times": "*", "cdot": "*", "div": "/", "x": "*",
        "dfrac": "frac", "tfrac": "frac", "√": "sqrt", "bmod": "mod", "pmod": "mod"}  # fmt: skip
SAME_RELATIONS = {"==": "=", "&=": "=", ":=": "=", "≠": "!=", "\\ne": "!=", "\\neq": "!=", "≤": "<=", "\\le": "<=",
                  "\\leq": "<=", "≥": ">=", "\\ge": ">=", "\\geq": ">=", "\\approx": "≈", "~=": "≈",
                  "\\equiv": "≡", "\\lt": "<", "\\gt": ">"}  # fmt: skip
RELATIONS = frozenset({"=", "===", "=>", "==>", "≈", "≡", "!=", "<=", ">=", "<", ">"})
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
OPPOSITES = "increas|decreas|(?:un)?safe|(?:un)?likely|(?:il)?legal|(?:im)?possibl"  # stems
# words that turn a statement round, by their stems or whole: an answer and content keep them
TURNS = re.compile(
    rf"\b(?:(?:{OPPOSITES}|gain|grow|shrink)(?=\w*\b)|(?:rises?|risen|rising|rose|falls?|fallen|falling|fell|lose[sd]?|"
    r"loss|lost|grew|win|won|profit|debt|owes?|more|less|fewer|greater|smaller|higher|lower|later|earlier|north|south|"
    r"east|west|morning|evening|afternoon|midnight|noon|night|maximum|minimum|not|never|no|without)\b)"
)
# of the web, mail, accounts and files; flags. No word is begun in its middle: that would take the square of its length
ADDRESS = re.compile(
    r"\b(?:https?://|www\.)\S+|(?<![\w.+-])[\w.+-]+@[\w-]+\.[\w.-]+|(?<![\w@#])[@#]\w+"
    r"|(?<![\w/.~])(?:~|\.{1,2})?/[\w.~-]+(?:/[\w.~-]*)*|\b[A-Za-z]:\\\S+"
    r"|(?<![\w.-])[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}\b|(?<!\S)--?[A-Za-z][\w-]*"
)
LONGEST = 80  # characters behind a clause in which its result may stand, if it has none
CACHED = 64  # texts whose equations are known


@functools.lru_cache(CACHED)
def equations_of(text: str) -> tuple[Tokens, ...]:
    """Return the clauses of a text that have a relation, in order."""
    return tuple(_equations(text))


@functools.lru_cache(CACHED)
def answers_of(text: str) -> tuple[Tokens, ...]:
    """Return the answers that a text states ("answer is", "####", \\boxed), in order.

    One with a number is its numbers and variables, up to the end of its clause or of a list of numbers; a letter from A
    to H alone or in brackets is a choice. Any other is its words, up to the end of the sentence ("the answer is Paris,
    France"), but not behind "####", which also begins a heading. If none has a number, the last clause with a number
    is returned behind them.
    """
    found, numbers = list[Tokens](), False
    stated = list(STATED.finditer(text))
    for match, following in zip_longest(stated, stated[1:]):
        until = following.start() if following else len(text)  # no part is read for two of them
        region = text[match.end() : _end_of_answer(text, match.end(), until)]
        tokens = tokens_of(region)
        if choice := CHOICE.match(region):
            found.append((choice[1],))
            numbers = True
        elif has_number(tokens):
            found.append((*tokens, *VARIABLE.findall(region), *turns_of(region)))
            numbers = True
        elif not match[0].startswith("#"):
            sentence = SENTENCE.split(text[match.end() : until], maxsplit=1)[0]
            if words := tuple(sentence.lower().split()):
                found.append(words)
    if numbers:
        return tuple(found)
    last: Tokens = ()
    for start, end in _clauses(text):
        tokens = tokens_of(text[start:end])
        if has_number(tokens):
            last = (*tokens, *turns_of(text[start:end]))
    return (*found, last) if last else tuple(found)


def turns_of(text: str) -> tuple[str, ...]:
    """Return the words of a text that would turn its meaning round if they changed ("more"), and its addresses."""
    return (*TURNS.findall(text.lower()), *addresses_of(text))


def addresses_of(text: str) -> tuple[str, ...]:
    """Return the addresses, paths, file names, accounts and flags in a text, in order, without marks behind them."""
    return tuple(each.rstrip(".,;:!?)]}>*_'\"") for each in ADDRESS.findall(text))


def has_number(tokens: Tokens) -> bool:
    """Tell whether a clause or an answer has a number in digits."""
    return any(isinstance(token, Decimal) or token[0].isnumeric() for token in tokens)  # "½", "1.2.3"


def _end_of_answer(text: str, since: int, until: int) -> int:
    """Where the clause ends that begins there, or the list of numbers: "3, 4 and 5"."""
    return next((cut for cut in _cuts(text, since, until) if not LISTED.match(text, cut)), until)


@functools.lru_cache(1024)
def tokens_of(text: str) -> Tokens:
    """Return a text's numbers and what stands between them; brackets in pairs, around more than one token."""
    found: list[Token] = []
    opened: list[int] = []
    pairs: list[tuple[int, int]] = []
    for match in TOKEN.finditer(text):
        kind, said = str(match.lastgroup), match[match.lastgroup or 0]
        if kind == "number":
            found.append(_number(said))
        elif kind == "bracket" and said == "(":
            opened.append(len(found))
        elif kind == "bracket":
            start = opened.pop() if opened else len(found)
            pairs += [(start, len(found))] * (len(found) - start > 1)
        elif kind == "relation":
            found.append(SAME_RELATIONS.get(said.lower(), said))
        elif kind in ("percent", "minus"):
            found.append("%" if kind == "percent" else "-")
        elif kind in ("units", "beside"):
            found.append(said.lower().replace(".", "").removesuffix("s"))
        else:
            plain = said.strip().lower()
            found.append(SAME.get(plain, plain))
    starts, ends = Counter(start for start, _ in pairs), Counter(end for _, end in pairs)
    places = ([*"(" * starts[i], *")" * ends[i], *found[i : i + 1]] for i in range(len(found) + 1))
    return tuple(chain.from_iterable(places)) if pairs else tuple(found)


def _number(text: str) -> Token:
    plain = re.sub(r"[,{}\\_\s]", "", text)
    try:
        return Decimal(plain)
    except InvalidOperation:  # 1.2.3
        return plain


def _equations(text: str) -> Iterator[Tokens]:
    """Yield the tokens of each clause with a relation.

    A clause whose last relation has no number behind it goes on in the next ones, as far as `LONGEST`.
    """
    clauses, at = list(_clauses(text)), 0
    while at < len(clauses):
        start, end = clauses[at]
        tokens = tokens_of(text[start:end]) if HAS_RELATION.search(text, start, end) else ()
        limit = end + LONGEST
        while RELATIONS.intersection(tokens) and not _ended(tokens) and at + 1 < len(clauses):
            if clauses[at + 1][1] > limit:
                break
            at += 1
            end = clauses[at][1]
            tokens = tokens_of(text[start:end])
        if RELATIONS.intersection(tokens):
            yield tokens
        at += 1


def _ended(tokens: Tokens) -> bool:
    """Whether a number stands behind the last relation."""
    last = max(place for place, token in enumerate(tokens) if token in RELATIONS)
    return any(isinstance(token, Decimal) for token in tokens[last + 1 :])


def _clauses(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for cut in _cuts(text, 0, len(text)):
        yield start, cut
        start = cut + 1
    yield start, len(text)


def _cuts(text: str, since: int, until: int) -> Iterator[int]:
    depth = 0
    for match in CUT.finditer(text, since, until):
        if match[0] in "[(":
            depth += 1
        elif match[0] in "])":
            depth = max(depth - 1, 0)
        elif match[0] != "," or not depth:
            depth = 0
            yield match.start()
