"""The griffe extension that mkdocs.yml names: docstrings are rewritten as they are read from the sources."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.append(str(Path(__file__).resolve().parent))  # griffe loads this file by its path
from docstring_text import split_names, with_section


class Docstrings(griffe.Extension):
    """See `docstring_text`."""

    def on_class(self, *, cls: Any, **rest: Any) -> None:
        if cls.docstring:
            names = [name for name, member in cls.members.items() if member.is_attribute]
            cls.docstring.value = split_names(with_section(cls.docstring.value, names, "Attributes:"))

    def on_function(self, *, func: Any, **rest: Any) -> None:
        if func.docstring:
            names = [parameter.name for parameter in func.parameters]
            func.docstring.value = split_names(with_section(func.docstring.value, names, "Args:"))
