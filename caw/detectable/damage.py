"""What splicing breaks in a text: pairs, doubled words and punctuation, glued words, lists, tables.

Each patch is read with its neighbours, in the old text and in the new one: what is wrong there now and was not before
is damage. So one fault that goes makes no room for another one elsewhere.
"""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence

from caw.detectable.splicing import Patch, spliced

AROUND = 8  # tokens before and behind a patch that are read with it
BRACKETS = {"(": ")", "[": "]", "{": "}", "“": "”", "«": "»", "‘": "’"}
CLOSING = {close: opening for opening, close in BRACKETS.items()}
ALIKE = ("```", "**", "~~", "`", "$", '"', "'")  # marks that open and close alike
MARKS = re.compile(
    r"\\(?P<edge>begin|end)\{(?P<block>\w+\*?)\}|<(?P<slash>/?)(?P<tag>[a-zA-Z][\w-]*)(?:\s[^<>]*)?>|"
    r"```|\*\*|~~|`|(?<!\\)\$(?!\d)|[\"“”«»()\[\]{}‘]|(?<!\w)'|['’](?!\w)"
)
VOID = {"br", "hr", "img", "input", "meta", "link", "wbr", "source", "col"}  # tags that nothing closes
WORD = r"[^\W\d_][\w'’-]*"
FAULTS = {  # name -> what is found; of words, which
    "a word written twice": re.compile(rf"\b({WORD})(?=[\s,;]+\1\b)", re.IGNORECASE),
    "words written twice": re.compile(rf"\b({WORD}(?:\s+{WORD}){{1,3}})(?=[\s,;]+\1\b)", re.IGNORECASE),
    "a word joined to itself": re.compile(rf"\b({WORD})\b,? (?:and|or)(?: other)? \1\b", re.IGNORECASE),
    "punctuation written twice": re.compile(r"[,;:](?=\s*[,;:])|(?<!\.)\.\.(?!\.)|\.(?=\s+[.,;])|,(?=\s*\.)"),
    "a space before punctuation": re.compile(r"(?<=\w)[ \t]+[,;.!?](?=\s|\Z)"),
    "a comma at the end of a line": re.compile(r",(?=[ \t]*\n)"),
    "two spaces": re.compile(r"(?<=\S)(?:  +(?=\S)|[ \t]+\n)"),
    "a line that begins with a space": re.compile(r"(?:\A|\n) (?=\S)"),
    "a line without its stop": re.compile(r"(?<=\w)\n(?=[A-Z])"),
    "a sign with a space on one side": re.compile(r"(?<=\w)(?:[*/+=×÷] | [*/+=×÷])(?=\w)"),
    "words joined by a line": re.compile(r"(?<=[^\W_])_(?=[^\W_])"),
    "a sign behind a backslash": re.compile(r"\\[$%&#_]"),
    "half a character": re.compile("\ufffd"),
    "a sentence that begins small": re.compile(
        r"(?<=[^\W\d_]{2})(?<!\betc)(?<!\bvs)(?<!\bapprox)[.!?]['\"”’)\]]*\s+(?=[^\W\dA-Z_])(?=[a-zß-öø-ÿ])"
        r"|\.\n(?=[a-zß-öø-ÿ])|\A(?=[a-zß-öø-ÿ])"
    ),
}
NUMBERED = re.compile(r"^[ \t]*(?:[-*#>]+[ \t]*)?(?:Step[ \t]+)?(\d{1,3})[.):](?=[\s.*])", re.MULTILINE)
OTHER = re.compile(r"[^\W\d_\u0000-\u02af]")  # a letter of a script that is not Latin
STOPS = ".,;:!?)]}”"  # a word does not begin right behind these


def broken(old: Sequence[int], patches: Sequence[Patch], text_of: Callable[[list[int]], str]) -> str:
    """Say what patches that do not meet break in a text of tokens `old`, "" for nothing. text_of: decodes some."""
    for group in _groups(patches):
        start, end = max(group[0].start - AROUND, 0), min(group[-1].end + AROUND, len(old))
        here = list(old[start:end])
        moved = [Patch(patch.start - start, patch.end - start, patch.tokens) for patch in group]
        new, shift = spliced(here, moved), 0
        if why := damaged(text_of(here), text_of(new)):
            return why
        for patch in moved:
            if _meets(new, patch.start + shift, text_of) and not _meets(here, patch.start, text_of):
                return "a word glued to the one before"
            shift += patch.longer
    return ""


def damaged(old: str, new: str) -> str:
    """Say what is wrong in a text that was not wrong in the old one, "" for nothing."""
    theirs, ours = _unpaired(old), _unpaired(new)
    for mark in theirs.keys() | ours.keys():
        if theirs[mark] != ours[mark]:
            pair = mark if mark in BRACKETS else CLOSING.get(mark, "")
            half = f"a bracket of {pair}{BRACKETS[pair]}" if pair else mark
            return f"{half} without its other half"
    for name, fault in FAULTS.items():
        if _found(fault, new) - _found(fault, old):
            return name
    if OTHER.search(new) and not OTHER.search(old):
        return "letters of another script"
    if _pipes(old) != _pipes(new):
        return "a table row with more or fewer cells"
    return ""


def disordered(old: str, new: str) -> bool:
    """Tell whether numbers of a list follow each other in the new text that do not in the old one."""
    return bool(_leaps(new) - _leaps(old))


def unclosed(old: str, new: str) -> bool:
    """Tell whether a text as a whole has more brackets without their other half than the old one."""
    theirs, ours = _unpaired(old), _unpaired(new)
    return any(ours[mark] > theirs[mark] for mark in "()[]{}")


def _groups(patches: Sequence[Patch]) -> list[list[Patch]]:
    """Put patches that are near each other together."""
    groups: list[list[Patch]] = []
    for patch in sorted(patches, key=lambda patch: patch.start):
        if groups and patch.start - groups[-1][-1].end < 2 * AROUND:
            groups[-1].append(patch)
        else:
            groups.append([patch])
    return groups


def _unpaired(text: str) -> Counter[str]:
    """Count marks without their other half, each by itself."""
    counts: Counter[str] = Counter()
    for match in MARKS.finditer(text):
        mark = match[0]
        if tag := match["tag"] or match["block"]:
            if match["tag"] and (tag.lower() in VOID or mark.endswith("/>")):
                continue
            opening, closing = f"<{tag}>", f"</{tag}>"
            mark = closing if match["slash"] or match["edge"] == "end" else opening
        elif mark in ALIKE:
            counts[mark] ^= 1
            continue
        else:
            opening, closing = (mark, BRACKETS[mark]) if mark in BRACKETS else (CLOSING[mark], mark)
        if mark == closing and counts[opening]:
            counts[opening] -= 1
        else:
            counts[mark] += 1
    return counts


def _found(fault: re.Pattern[str], text: str) -> Counter[str]:
    return Counter(match[1].lower() if fault.groups else "" for match in fault.finditer(text))


def _pipes(text: str) -> list[int]:
    return [count for line in text.split("\n") if (count := line.count("|"))]


@functools.lru_cache(64)
def _leaps(text: str) -> Counter[tuple[int, int]]:
    """Count pairs of numbers of a list that do not follow each other."""
    numbers = [int(match[1]) for match in NUMBERED.finditer(text)]
    return Counter((one, two) for one, two in itertools.pairwise(numbers) if two not in (one + 1, 1))


def _meets(tokens: list[int], place: int, text_of: Callable[[list[int]], str]) -> bool:
    """Tell whether a word goes on, or begins without a space, at a place; only of scripts with spaces."""
    before, until = text_of(tokens[:place]), text_of(tokens[: place + 1])
    if not before or len(until) <= len(before) or not any(map(str.isspace, until[:-1])):
        return False
    return (_spaced(before[-1]) or before[-1] in STOPS) and _spaced(until[len(before)])


def _spaced(char: str) -> bool:
    """Tell whether a character belongs to the words of a script with spaces, or to a number."""
    return char.isdigit() or char.lower() != char.upper()
