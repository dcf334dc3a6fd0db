"""This library's docstrings as the reader of Google style wants them.

Two habits of the code save lines there and would be lost on a page. Names that share a text stand together ("top_k,
top_p: as in transformers"); here each gets the text. And fields of a class or arguments of a short function are named
without a heading; here they come under "Attributes:" or "Args:".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

TYPE = r"(?: (?:u?int\d+|b?float\d+|bool))?"
NAME = rf"\w+{TYPE}(?: \[[^\]]*\])?"  # with its type and shape, where they stand there
NAMES = re.compile(rf"^( *)({NAME}(?:, {NAME})*): (.*)$")
FIELDS = re.compile(rf"^({NAME}(?:, {NAME})*): ")
BESIDE = re.compile(rf"([.;]) ({NAME}(?:, {NAME})*): ")  # a name after another on one line
SENTENCE = re.compile(r"(Raises|Returns|Deterministic)\b")  # after the last name, without an empty line
INDENT = " " * 4  # of the entries of a section
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$", re.MULTILINE)


def split_names(text: str) -> str:
    """Each line "a, b: text" of a section with its continuation as one entry for a and one for b."""
    lines, out, at = text.split("\n"), [], 0
    while at < len(lines):
        found = NAMES.match(lines[at])
        at += 1
        if not found or not found[1]:  # entries of a section are indented; a sentence may have a colon, too
            out.append(lines[at - 1])
            continue
        start = at
        while at < len(lines) and lines[at].startswith(f"{found[1]} "):
            at += 1
        for name, _, shape in (entry.partition(" ") for entry in re.findall(NAME, found[2])):
            out += [f"{found[1]}{name}: {f'{shape}, ' if shape else ''}{found[3]}", *lines[start:at]]
    return "\n".join(out)


def with_section(text: str, names: Iterable[str], heading: str) -> str:
    """A docstring whose lines "name: what it is" stand under a heading, "Attributes:" or "Args:", each on a line."""
    known = set(names)
    if SECTION.search(text):
        return "\n".join(
            _apart(line, known, " " * 4) if line.startswith(" " * 4) else line for line in text.split("\n")
        )
    return "\n\n".join(_under(paragraph, known, heading) for paragraph in text.split("\n\n"))


def _apart(text: str, known: set[str], indent: str) -> str:
    """A line break before names that stand behind another's text."""
    return BESIDE.sub(lambda m: f"{m[1]}\n{indent}{m[2]}: " if _known(m[2], known) else m[0], text)


def _under(paragraph: str, known: set[str], heading: str) -> str:
    """A paragraph with its names under the heading; what comes before the first name and after the last stays."""
    lines = _apart(paragraph, known, "").split("\n")
    first = next((i for i, line in enumerate(lines) if _begins(line, known)), None)
    if first is None:
        return paragraph
    last = next((i for i in range(first, len(lines)) if SENTENCE.match(lines[i])), len(lines))
    entries = [f"    {line}" if _begins(line, known) else f"        {line.strip()}" for line in lines[first:last]]
    parts = ["\n".join(lines[:first]), "\n".join([heading, *entries]), "\n".join(lines[last:])]
    return "\n\n".join(part for part in parts if part)


def _begins(line: str, known: set[str]) -> bool:
    found = FIELDS.match(line)
    return found is not None and _known(found[1], known)


def _known(names: str, known: set[str]) -> bool:
    return known.issuperset(name.split(" ")[0] for name in re.findall(NAME, names))
