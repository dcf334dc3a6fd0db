"""The griffe extension that mkdocs.yml names: docstrings are rewritten as they are read from the sources."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.append(str(Path(__file__).resolve().parent))  # griffe loads this file by its path
from docstring_text import split_names, with_attributes


class Docstrings(griffe.Extension):
    """See `docstring_text`."""

    def on_class(self, *, cls: Any, **rest: Any) -> None:
        if cls.docstring:
            names = [name for name, member in cls.members.items() if member.is_attribute]
            cls.docstring.value = split_names(with_attributes(cls.docstring.value, names))

    def on_function(self, *, func: Any, **rest: Any) -> None:
        if func.docstring:
            func.docstring.value = split_names(func.docstring.value)
