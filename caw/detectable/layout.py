"""Layout of a text, which says nothing: line breaks between sentences of prose, and the signs of equations.

    a line break between two sentences  ->  an empty line, or a space; an empty line  ->  a line break
    48 * 2 = 96                         ->  48 × 2 = 96, 48×2 = 96, 48×2=96

No word changes, so nothing is asked of a model. Code, tables, formulas and the lines of lists, headings, quotes and
verse stay as they are: a block is prose if each of its lines but the last ends a sentence. "*" without spaces would set
words in italics where Markdown is shown, so it becomes "×"; where no "=" is beside it, it may be code, and stays.
"""

import bisect
import itertools
import re
from collections.abc import Callable, Iterator, Sequence

from caw.detectable.splicing import Patch

BESIDE = 4  # tokens on each side of a change that are written again with it: they decide how a text is cut
STRETCH = 64  # tokens that are decoded together to find a character in them; more take longer
BLOCK = re.compile(r"[^\n]+(?:\n[^\n]+)*")
FIXED = re.compile(  # code, formulas and rows of tables; what nothing closes reaches to the end, so each is read once
    r"(?:```|~~~).*?(?:```|~~~|\Z)|`[^`\n]*`|\$\$.*?(?:\$\$|\Z)|\\\[.*?(?:\\\]|\Z)|\\\(.*?(?:\\\)|\Z)|"
    r"\$[^$\n\\]*\\[^$\n]*\$|^(?:[ \t]*\||(?: {4}|\t)[ \t]*[^\W\d]|[^\n]*(?:[a-z_\d]\(|[{}]|;$|==|[+*/-]=))[^\n]*",
    re.DOTALL | re.MULTILINE,
)
NO_PROSE = re.compile(r"[ \t]|[-*+#>|•]|\W*\d+[.):]|```|\\|<|.*(?: {2}|\t)\Z")  # lines that are none
LABEL = re.compile(r"[^\W\d_][^\n:.!?]{0,24}:(?:\s|\Z)")  # two such lines are a list
SENTENCE_END = re.compile(r"(?:[.!?:][\"'”’)]?|\d) ?\Z")
BEGINNING = re.compile(r"[\"'“‘(]?[^\W_]|[$€£]\d")
OPERAND = r"\(?[$€£]?\d[\d.,]*%?\)?"
EQUATION = re.compile(  # a whole one: of none with letters is a part written otherwise
    rf"(?<![\w.,])(?<!\S [-+*/×÷x] )\(?{OPERAND}(?: [-+*/×÷=x] {OPERAND})+(?!\w| [-+*/×÷=] )"
)
TIMES_UNITS = re.compile(r"(?<=[a-z%)]) \* (?=[$€£(]?\d[^\n]{0,40} = )")  # "4 feet * 6 feet = "
SIGN = re.compile(r" ([-+*/×÷=x]) ")
TIMES = {"*": "×", "x": "×"}


def layouts(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, what may stand there instead) of a text; changes at the same place exclude each other."""
    fixed = [match.span() for match in FIXED.finditer(text)]

    def free(start: int, end: int) -> bool:
        behind = bisect.bisect_right(fixed, start, key=lambda span: span[1])
        return behind == len(fixed) or fixed[behind][0] >= end

    blocks = list(BLOCK.finditer(text, len(text) - len(text.lstrip(" "))))  # a text may begin with the prompt's space
    prose = [_is_prose(block[0]) for block in blocks]
    for number, block in enumerate(blocks):
        for match in re.finditer(" ?\n", block[0]) if prose[number] else ():
            start, end = block.start() + match.start(), block.start() + match.end()
            if free(start, end):
                yield start, end, "\n\n"
                yield start, end, " "
    for (number, one), other in zip(enumerate(blocks), blocks[1:], strict=False):
        ends = SENTENCE_END.search(one[0]) is not None and free(one.end(), other.start())
        if ends and prose[number] and prose[number + 1] and text[one.end() : other.start()] == "\n\n":
            yield one.end(), other.start(), "\n"
    for match in EQUATION.finditer(text):
        if free(*match.span()) and re.search(r" [×÷=x] ", match[0]):
            others = dict.fromkeys((_signs(match[0], " {} "), _signs(match[0], "{}", " = "), _signs(match[0], "{}")))
            for written in others:
                if written != match[0]:
                    yield match.start(), match.end(), written
    for match in TIMES_UNITS.finditer(text):
        if free(*match.span()):
            yield match.start(), match.end(), " × "


def layout_patches(
    tokens: Sequence[int], since: int, text_of: Callable[[list[int]], str], ids_of: Callable[[str], list[int]]
) -> list[Patch]:
    """Return the layouts of a text as patches of its tokens from the place `since` on.

    text_of, ids_of: decode and encode. What they do not give back as it was has no patches, and neither have tokens
    that encode otherwise with their neighbours alone.
    """
    lines = _Lines(tokens, text_of)
    if lines.text != text_of(list(tokens)):
        return []
    found = dict[Patch, None]()
    for start, end, other in layouts(lines.text):
        first, last = lines.token_at(start), lines.token_at(end - 1) + 1
        begin, until = max(first - BESIDE, since), min(last + BESIDE, len(tokens))
        if begin > first:
            continue
        here = list(tokens[begin:until])
        piece, skipped = text_of(here), len(text_of(here[: first - begin])) + start - lines.char_of(first)
        if piece[skipped : skipped + end - start] != lines.text[start:end] or ids_of(piece) != here:
            continue
        patch = _difference(here, ids_of(piece[:skipped] + other + piece[skipped + end - start :]), begin)
        if patch is not None and (until < len(tokens) or patch.end < until):
            found[patch] = None
    return list(found)


def _is_prose(block: str) -> bool:
    lines = block.split("\n")
    if any(NO_PROSE.match(line) or not BEGINNING.match(line) for line in lines):
        return False
    return all(map(SENTENCE_END.search, lines[:-1])) and sum(LABEL.match(line) is not None for line in lines) < 2


def _signs(equation: str, others: str, equals: str = "") -> str:
    """An equation with its signs written otherwise; equals: what stands for the last kind of them, empty = the same."""

    def written(match: re.Match[str]) -> str:
        sign = TIMES.get(match[1], match[1])
        return equals if equals and sign == "=" else others.format(sign)

    return SIGN.sub(written, equation)


def _difference(old: Sequence[int], new: Sequence[int], begin: int) -> Patch | None:
    """The patch that makes one of two lists of the other; begin: place of the first.

    Where tokens only come or go, it has the one before them too: so what stands there instead meets it.
    """
    if list(old) == list(new):
        return None
    head = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))))
    tail, most = 0, min(len(old), len(new)) - head
    while tail < most and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    if tail == most:
        head -= 1
    return Patch(begin + head, begin + len(old) - tail, tuple(new[head : len(new) - tail])) if head >= 0 else None


class _Lines:
    """Where the tokens of a text stand in it, found in its lines, since a token alone may decode otherwise; long ones
    are parted where that changes nothing."""

    def __init__(self, tokens: Sequence[int], text_of: Callable[[list[int]], str]) -> None:
        self.tokens, self.text_of = list(tokens), text_of
        self.starts = [0]  # tokens at which lines begin
        for place in range(1, len(tokens)):
            if "\n" in text_of([tokens[place - 1]]) or (place - self.starts[-1] >= STRETCH and self._parts(place)):
                self.starts.append(place)
        bounds = [*self.starts, len(tokens)]
        parts = [text_of(self.tokens[one:other]) for one, other in itertools.pairwise(bounds)]
        self.chars = [0, *itertools.accumulate(map(len, parts))]  # characters before each line
        self.text = "".join(parts)

    def _parts(self, place: int) -> bool:
        before, behind = self.tokens[place - BESIDE : place], self.tokens[place : place + BESIDE]
        return self.text_of(before) + self.text_of(behind) == self.text_of(before + behind)

    def token_at(self, char: int) -> int:
        """Return the token that writes a character."""
        line = bisect.bisect_right(self.chars, char, 0, len(self.starts)) - 1
        start = self.starts[line]
        until = self.starts[line + 1] if line + 1 < len(self.starts) else len(self.tokens)
        beyond = range(start + 1, until + 1)
        written = bisect.bisect_right(
            beyond, char - self.chars[line], key=lambda end: len(self.text_of(self.tokens[start:end]))
        )
        return start + written

    def char_of(self, token: int) -> int:
        """Return the character at which a token begins."""
        line = bisect.bisect_right(self.starts, token) - 1
        return self.chars[line] + len(self.text_of(self.tokens[self.starts[line] : token]))
