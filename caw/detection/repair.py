"""Undo what copying, pasting and mailing do, by rules that read the text alone, never a key or a score."""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise

from caw.io.show import HIDDEN
from caw.io.unicode import normalized

# letters of other alphabets that look like Latin ones: pairs of confusables.txt (Unicode UTS 39) for which both are the
# same shape in common fonts
CYRILLIC = ("АВЕЅІЈКМНОРСТХУЬаеѕіјорсухԁһӏԛԝ", "ABESIJKMHOPCTXYbaesijopcyxdhlqw")
GREEK = ("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧονϳ", "ABEZHIKMNOPTYXovj")
PAIRS = {ord(c): latin for own, latins in (CYRILLIC, GREEK) for c, latin in zip(own, latins, strict=True)}
LATIN = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f"
OTHER = "\u0370-\u03ff\u0400-\u052f"
WORD = re.compile(f"[{LATIN}{OTHER}]+")
IS_LATIN, IS_OTHER = re.compile(f"[{LATIN}]"), re.compile(f"[{OTHER}]")
NAMED = 3  # kinds of characters that a message names
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,24}\d{0,2});")
BREAKS = re.compile("\r\n|[\r\u0085\u2028\u2029\x0b\x0c]")
INVISIBLE = re.compile(f"{HIDDEN.pattern[:-1]}\ufe0e\ufe0f]")
# between letters of other scripts, in flags and other pictures these say how the signs around them join
JOINERS = re.compile("[\u034f\u200c\u200d\ufe00-\ufe0f\u180b-\u180f\U000e0000-\U000e0fff]")
# a run that no sign has: a manifest (C2PA) or a message that is written behind one
WRAPPER = re.compile("\ufeff?[\ufe00-\ufe0f\U000e0100-\U000e01ef]{8,}")
SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
HYPHENS = re.compile("[\u2010\u2011]")
# ligatures, and letters in styles that Unicode has for mathematics
STYLED = re.compile("[\ufb00-\ufb06\U0001d400-\U0001d7ff]")
WIDE, EAST_ASIAN = re.compile("[\uff01-\uff5e]"), re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
DOUBLED = re.compile(r"""(?<=[^\W\d_]|[.,;:!?)"'’”])[ ]{2,}(?=[^\W\d_])""")
TYPOGRAPHIC = {
    "‘": "'", "’": "'", "‚": "'", "‛": "'", "′": "'", "“": '"', "”": '"', "„": '"', "‟": '"', "″": '"', "–": "-",
    "—": "--", "−": "-", "…": "...", "½": "1/2", "¼": "1/4", "¾": "3/4",
}  # fmt: skip
TYPOGRAPHY = re.compile(f"[{''.join(TYPOGRAPHIC)}]")
# what the rules for characters look for; a text without any of it needs none of them
SPECIAL = re.compile("|".join(each.pattern for each in (INVISIBLE, BREAKS, SPACES, HYPHENS, STYLED, WIDE, IS_OTHER)))
Rule = Callable[[str], tuple[str, str]]


def repaired(text: str) -> tuple[str, tuple[str, ...]]:
    """Return (the repaired text, descriptions such as "41 invisible characters (zero width space)", ...).

    Undoes HTML entities, decomposed letters, ligatures, styled and full-width letters, invisible characters, special
    spaces and line ends, letters of other alphabets in Latin words, e-mail quoting, wrapped and hyphenated lines,
    doubled spaces. Deterministic. Repairing again changes nothing, except where one rule makes room for another.
    """
    text, said = _entities(text)
    found = [said]
    kinds = "" if text.isascii() else "".join(set(text))
    for rule in RULES if SPECIAL.search(kinds) or normalized("NFC", text) != text else LINES:
        text, said = rule(text)
        found.append(said)
    return text, tuple(filter(None, found))


def plain(text: str) -> tuple[str, str]:
    """Return (the text with typographic quotes, dashes, dots and fractions as ASCII, a description of them or "")."""
    if not TYPOGRAPHY.search("".join(set(text))):
        return text, ""
    signs = TYPOGRAPHY.findall(text)
    return TYPOGRAPHY.sub(lambda sign: TYPOGRAPHIC[sign[0]], text), _counted("typographic sign", signs)


def _entities(text: str) -> tuple[str, str]:
    count = sum(html.unescape(entity) != entity for entity in ENTITY.findall(text))
    text = ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
    return text, _number("HTML entity", count, "HTML entities")


def _composed(text: str) -> tuple[str, str]:
    composed = normalized("NFC", text)
    return composed, "" if composed == text else _number("decomposed letter", max(1, len(text) - len(composed)))


def _styled(text: str) -> tuple[str, str]:
    kinds = [STYLED] if EAST_ASIAN.search(text) else [STYLED, WIDE]
    signs = [sign for kind in kinds for sign in kind.findall(text)]
    for kind in kinds:
        text = kind.sub(lambda sign: unicodedata.normalize("NFKC", sign[0]), text)
    return text, _counted("ligature or styled letter", signs, "ligatures and styled letters")


def _invisible(text: str) -> tuple[str, str]:
    signs: list[str] = []
    last = (-1, False)  # place of the last joiner, and whether it joins: one behind it does as it does

    def gone(found: re.Match[str]) -> str:
        nonlocal last
        sign, at = found[0], found.start()
        if JOINERS.match(sign):
            last = at, last[1] if last[0] == at - 1 else _joins(text, at)
            if last[1]:
                return sign
        signs.append(sign)
        # a soft hyphen at the end of a line parts a word
        return "-" if sign == "\u00ad" and text[at + 1 : at + 2] in ("\n", "\r") else ""

    text = INVISIBLE.sub(gone, text)
    return text, _counted("invisible character", signs)


def _joins(text: str, at: int) -> bool:
    """Return whether the character before a run of joiners is of a script, or a picture, that uses joiners."""
    before = text[at - 1 : at]
    if not before or SPACES.match(before) or HIDDEN.match(before):
        return False
    return (ord(before) >= 0x250 and not "\u2000" <= before <= "\u206f") or text[at + 1 : at + 2] == "\u20e3"


def _spaces(text: str) -> tuple[str, str]:
    wide_stay = bool(EAST_ASIAN.search(text))
    signs = [sign for sign in SPACES.findall(text) if sign != "\u3000" or not wide_stay]
    if signs:
        wide = "\u3000" if "\u3000" not in signs else ""
        text = SPACES.sub(lambda sign: sign[0] if sign[0] == wide else " ", text)
    hyphens = HYPHENS.findall(text)
    return HYPHENS.sub("-", text), _counted("special space or hyphen", signs + hyphens, "special spaces and hyphens")


def _number(what: str, count: int, many: str = "") -> str:
    return "" if not count else f"{count} {what if count == 1 else many or what + 's'}"


def _counted(what: str, signs: Iterable[str], many: str = "") -> str:
    """Describe the number of signs and name the most frequent ones."""
    kinds = Counter(signs)
    said = _number(what, kinds.total(), many)
    names = [unicodedata.name(sign, "").lower() or f"U+{ord(sign):04X}" for sign, _ in kinds.most_common(NAMED)]
    more = ["others"] * (len(kinds) > NAMED)
    return said and f"{said} ({', '.join(names + more)})"


def without_lookalikes(text: str) -> tuple[str, int]:
    """Return (the text with lookalikes replaced by Latin letters, how many there were in Latin words).

    A word counts as Latin if it has a Latin letter, or if it consists of lookalikes alone and every word of that
    alphabet in the text does.
    """
    if not IS_OTHER.search(text):
        return text, 0
    words = {word for word in WORD.findall(text) if IS_OTHER.search(word)}
    mixed = {word for word in words if IS_LATIN.search(word)}
    alike = {word for word in words - mixed if all(ord(letter) in PAIRS for letter in word)}
    if words == mixed | alike and len(IS_LATIN.findall(text)) > len(IS_OTHER.findall(text)):
        mixed |= alike
    count = 0

    def latin(found: re.Match[str]) -> str:
        nonlocal count
        word = found[0]
        if word not in mixed:
            return word
        count += sum(ord(letter) in PAIRS for letter in word)
        return word.translate(PAIRS)

    return WORD.sub(latin, text), count


NARROWEST, WIDEST = 40, 132  # columns that lines are wrapped at
SLACK = 0.85  # of the width: proportional type fills a line with more or fewer characters
FEWEST = 3  # wraps that make a text a wrapped one
MOST_SHARE, INSIDE_SHARE = 0.7, 0.4  # of the breaks that are wraps, and of the wraps that stand inside a sentence
QUOTED = re.compile(r"(?:^>[^\n]*(?:\n|\Z)){3,}", re.MULTILINE)
MARK = re.compile(r"^(?:> ?)+", re.MULTILINE)
ITEM = re.compile(r"\s*(?:[-*+•>#|]|\d{1,3}[.)])\s|\s{2,}|```|\|")
HYPHENATED = re.compile("([^\\W\\d_])(?:-|\u00ad|\u2010)[ \t]*\n[ \t]*([^\\W\\d_])")


def without_quoting(text: str) -> tuple[str, int]:
    """Return (the text without "> " where at least three consecutive lines begin with it, number of those lines)."""
    count = 0

    def bare(block: re.Match[str]) -> str:
        nonlocal count
        said, lines = MARK.subn("", block[0])
        count += lines
        return said

    return (QUOTED.sub(bare, text), count) if ">" in text else (text, 0)


def without_hyphens(text: str) -> tuple[str, int]:
    """Return (the text with words rejoined that were split by a hyphen and a line break, their number)."""
    count = 0

    def joined(found: re.Match[str]) -> str:
        nonlocal count
        if not found[2].islower():
            return found[0]
        count += 1
        return found[1] + found[2]

    return (HYPHENATED.sub(joined, text), count) if "\n" in text else (text, 0)


def without_wraps(text: str) -> tuple[str, int]:
    """Return (the text with hard-wrapped lines joined by a space, number of removed line breaks)."""
    lines = text.split("\n")
    if len(lines) <= FEWEST:
        return text, 0
    inner = [(a.rstrip(), b.strip()) for a, b in pairwise(lines) if a.strip() and b.strip()]
    width = max((len(before) for before, _ in inner), default=0)
    if not NARROWEST <= width <= WIDEST:
        return text, 0
    wraps = [i for i, pair in enumerate(pairwise(lines)) if _is_wrap(*pair, width)]
    inside = sum(lines[i + 1].lstrip()[:1].islower() for i in wraps)
    if len(wraps) < max(FEWEST, MOST_SHARE * len(inner)) or inside < INSIDE_SHARE * len(wraps):
        return text, 0
    places, out = set(wraps), lines[:1]
    for i, line in enumerate(lines[1:]):
        if i in places:
            out[-1] = f"{out[-1].rstrip()} {line.lstrip()}"
        else:
            out.append(line)
    return "\n".join(out), len(wraps)


def _is_wrap(before: str, after: str, width: int) -> bool:
    """Return whether a line ends where the next line's first word did not fit."""
    before, words = before.rstrip(), after.split(maxsplit=1)
    if not before or not words or ITEM.match(after):
        return False
    return len(before) + 1 + len(words[0]) > SLACK * width


def _counting(undo: Callable[[str], tuple[str, int]], what: str, many: str = "") -> Rule:
    """Return the rule of a function that gives the text and the number of its changes."""

    def rule(text: str) -> tuple[str, str]:
        text, count = undo(text)
        return text, _number(what, count, many)

    return rule


def without_wrapper(text: str) -> tuple[str, int]:
    """Return (the text without messages in variation selectors, number of their characters)."""
    return WRAPPER.sub("", text), sum(map(len, WRAPPER.findall(text)))


OTHER_SYSTEM = "line end of another system", "line ends of another system"
PARTED = "word parted at a line end", "words parted at line ends"
IN_LATIN = "letter of another alphabet inside a Latin word", "letters of other alphabets inside Latin words"
LINES: tuple[Rule, ...] = (
    _counting(lambda text: BREAKS.subn("\n", text), *OTHER_SYSTEM), _counting(without_quoting, "quoted line"),
    _counting(without_hyphens, *PARTED), _counting(without_wraps, "wrapped line"),
    _counting(lambda text: DOUBLED.subn(" ", text), "doubled space"),
)  # fmt: skip
HIDING = "character of a hidden message", "characters of a hidden message"
RULES: tuple[Rule, ...] = (
    _counting(without_wrapper, *HIDING), _composed, _styled, _invisible, _spaces,
    _counting(without_lookalikes, *IN_LATIN), *LINES,
)  # fmt: skip
