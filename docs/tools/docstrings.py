"""The griffe extension that mkdocs.yml names: docstrings are rewritten as they are read from the sources."""

from __future__ import annotations

import importlib
import inspect
import re
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
        if any("takes_fields" in str(decorator.value) for decorator in func.decorators):
            as_called(func)
        if func.docstring:
            names = [parameter.name for parameter in func.parameters]
            func.docstring.value = split_names(with_section(func.docstring.value, names, "Args:"))


def as_called(func: Any) -> None:
    """Show a function of a call (`caw.call.takes_fields`) with the keywords and docstring that it has when it runs."""
    function = getattr(importlib.import_module(func.module.path), func.name)
    shown = [
        griffe.Parameter(
            name=parameter.name,
            annotation=re.sub(r"\b[a-z_]+(\.[a-z_]+)*\.(?=[A-Z])", "", inspect.formatannotation(parameter.annotation)),
            kind=griffe.ParameterKind[parameter.kind.name.lower()],
            default=None if parameter.default is parameter.empty else repr(parameter.default),
        )
        for parameter in inspect.signature(function).parameters.values()
    ]
    func.parameters = griffe.Parameters(*shown)
    func.docstring.value = inspect.cleandoc(function.__doc__)
