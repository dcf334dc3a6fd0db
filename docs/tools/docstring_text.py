"""This library's docstrings as the reader of Google style wants them.

Two habits of the code save lines there and would be lost on a page. Names that share a text stand together ("top_k,
top_p: as in transformers"); here each gets the text. And a class says what its fields are without a heading; here they
come under "Attributes:".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

NAME = r"\w+(?: \[[^\]]*\])?"  # with its shape, where it stands there
NAMES = re.compile(rf"^( *)({NAME}(?:, {NAME})+): (.*)$")
FIELDS = re.compile(r"^(\w+(?:, \w+)*): ")
BESIDE = re.compile(r"([.;]) (\w+): ")  # a field after another on one line
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


def with_attributes(text: str, names: Iterable[str]) -> str:
    """The docstring of a class with its paragraph of fields, "name: what it is" a line, under "Attributes:"."""
    known = set(names)
    if SECTION.search(text):
        return text
    paragraphs = text.split("\n\n")
    for i, paragraph in enumerate(paragraphs):
        found = FIELDS.match(paragraph)
        if found and known.issuperset(found[1].split(", ")):
            indented = "\n".join(f"    {line}" for line in _entries(paragraph, known))
            paragraphs[i] = f"Attributes:\n{indented}"
    return "\n\n".join(paragraphs)


def _entries(paragraph: str, known: set[str]) -> Iterable[str]:
    """The lines of a paragraph of fields, one field each; what goes on from the line before is indented."""
    apart = BESIDE.sub(lambda m: f"{m[1]}\n{m[2]}: " if m[2] in known else m[0], paragraph)
    for line in apart.split("\n"):
        found = FIELDS.match(line)
        begins = found is not None and known.issuperset(found[1].split(", "))
        yield line if begins else f"    {line.strip()}"
