"""Content of a text, in order: numbers, equations, names, code, addresses, comparisons, negations and stated answers.

Words are read in English only. Digits of every script and Chinese numerals are numbers; a name needs a capital letter.
"""

import re
from collections.abc import Collection, Iterator

from caw.keeps.equations import (
    BESIDE,
    BOUND,
    NUMBER_WORDS,
    OPPOSITES,
    SIDE,
    TITLES,
    Tokens,
    addresses_of,
    equations_of,
)

# "second" is mostly no number
WORDS = (
    rf"{NUMBER_WORDS}|zero|once|twice|thrice|half|all|both|hundreds?|thousands?|millions?|billions?|trillions?|dozens?"
)
CHINESE = "〇零一二三四五六七八九十百千万萬億亿兩两"
NUMBER = re.compile(
    rf"(?:(?<![\w)%])[-−–])?[$€£¥]?(?:\d(?:[\d,]*\d)?(?:\.\d+)?|\.\d+)|[¼-¾⅐-⅞²³¹⁰-⁹]+|[{CHINESE}]+|\b(?:{WORDS})\b",
    re.IGNORECASE,
)
NAME = re.compile(r"\b[^\W\d_][\w'’-]*")
OPENING = r"[\s\"'“”‘’*#>_()\[\]|~•–—-]*"
BEGINS = re.compile(rf"(?:\A|{TITLES}[.!?:…\n]){OPENING}\Z")  # what is before the first word of a sentence or an item
FENCE = "```"
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
ANSWER = re.compile(r"\banswer\s+is\b:?[^\S\n]*((?:[^.!?\n]|[.!?](?=\S))+)", re.IGNORECASE)
# how a denial is worded is free: "do not" may become "never"
NEGATION = re.compile(
    r"\b(?:cannot|not|no|none|nor|neither|never|nothing|nobody|nowhere|without)\b|n['’]t\b", re.IGNORECASE
)
# what compares or places a number ("at least 5", "5 PM", "x < 5"), and words whose opposite is another such word
TURNED = re.compile(
    rf"\b(?:{BOUND})(?= (?:[-−$€£¥]?\d|(?:one|{NUMBER_WORDS})\b))|(?<=\d) ?(?:{BESIDE})\b|\b(?:{OPPOSITES})(?=\w*\b)"
    r"|\b(?:morning|afternoon|evening|midnight|noon|yesterday|today|tonight|tomorrow)\b"
    rf"|{SIDE}[<>](?= ?[-−+]?[\w$.(\\])|[≤≥≠±]",
    re.IGNORECASE,
)
NO_NAMES = {"I", "I'm", "I'll", "I've", "I'd"}
LOOKED_BACK = 16  # characters before a word that tell whether it begins a sentence


def names_in(text: str) -> set[str]:
    """Return the words with a capital that do not begin a sentence or an item."""
    return {word for word, begins in _capitalised(text) if not begins}


def content_of(text: str, names: Collection[str] = ()) -> tuple[tuple[str | Tokens, ...], ...]:
    """Return numbers, names, code, addresses, comparisons, negations, answers and equations of a text, each in order.

    names: words that are names even where they begin a sentence. Numbers are without thousands separators and currency
    signs; number words are numbers. Code is what stands in fenced blocks and between backticks, word for word. All
    negations are alike. An answer is what follows "answer is" in its sentence.
    """
    return (
        tuple(re.sub("[,$€£¥]", "", each).replace("−", "-").lower() for each in NUMBER.findall(text)),
        tuple(word for word, begins in _capitalised(text) if not begins or word in names),
        tuple(_code(text)),
        addresses_of(text),
        tuple(re.sub(r"[\s.]", "", each.lower()) for each in TURNED.findall(text)),
        tuple("not" for _ in NEGATION.finditer(text)),
        tuple(" ".join(words.lower().split()) for words in ANSWER.findall(text)),
        equations_of(text),
    )


def same_content(one: str, other: str, names: Collection[str] = ()) -> bool:
    """Tell whether two texts have the same content, in the same order."""
    return content_of(one, names) == content_of(other, names)


def _capitalised(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each word with a capital, and whether it begins a sentence."""
    for match in NAME.finditer(text):
        word = match[0].replace("’", "'")
        if word[0].isupper() and word not in NO_NAMES:
            before = text[max(match.start() - LOOKED_BACK, 0) : match.start()]
            yield word, bool(BEGINS.search(before))


def _code(text: str) -> list[str]:
    code = list[str]()
    for number, part in enumerate(text.split(FENCE)):
        code += [part.strip()] if number % 2 else INLINE.findall(part)
    return code
