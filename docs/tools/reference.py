"""Signatures of public objects, and the first paragraphs of their docstrings, as Markdown."""

from __future__ import annotations

import inspect
import pkgutil
import re
from typing import Any

WIDTH = 110  # of a signature on one line
FUNCTION = re.compile(r"<function (\S+|<lambda>) at 0x\w+>")
MODULES = re.compile(r"\b[A-Za-z_]+(\.[A-Za-z_]+)*\.(?=[A-Za-z])")


def entry(name: str, *members: str) -> str:
    """A heading, then signature and first paragraph of an object and of these members of a class."""
    target = pkgutil.resolve_name(name)
    parts = [f"### {name}", signature(name, target), summary(target)]
    for member in members:
        function = inspect.getattr_static(target, member)
        function = getattr(function, "__func__", getattr(function, "fget", function))
        parts += [signature(f"{name.rpartition('.')[2]}.{member}", function), summary(function)]
    return "\n\n".join(part for part in parts if part)


def summary(target: Any) -> str:
    return (inspect.getdoc(target) or "").partition("\n\n")[0]


def signature(name: str, target: Any) -> str:
    """A call as it is written, annotations without their modules; nothing for a module."""
    if not callable(target):
        return ""
    parameters = [p for p in inspect.signature(target).parameters.values() if p.name != "self"]
    cells = [MODULES.sub("", FUNCTION.sub(r"\1", str(parameter)).replace("'", "")) for parameter in parameters]
    keywords = next((i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), None)
    if keywords is not None and all(p.kind is not p.VAR_POSITIONAL for p in parameters):
        cells.insert(keywords, "*")
    line = f"{name}({', '.join(cells)})"
    if len(line) > WIDTH:
        line = "\n".join([f"{name}(", *(f"    {cell}," for cell in cells), ")"])
    return f"```text\n{line}\n```"
