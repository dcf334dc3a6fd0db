"""Commands that are imported when they are called, so that `caw --help` is instant; other packages bring theirs too."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

ENTRY_POINTS = "caw.commands"


@dataclass(frozen=True)
class LazyCommand:
    """The location of a command's function."""

    module: str
    function: str

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring, read from the source: importing the module takes seconds."""
        found = importlib.util.find_spec(self.module)
        assert found is not None and found.origin is not None
        tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
        command = next(e for e in tree.body if isinstance(e, ast.FunctionDef) and e.name == self.function)
        return " ".join((ast.get_docstring(command) or "").split("\n\n")[0].split())

    def load(self, name: str) -> Any:
        """Import the module and return the command."""
        alone = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)
        function = getattr(importlib.import_module(self.module), self.function)
        alone.command(name, cls=getattr(function, "kind", TyperCommand))(function)
        return typer.main.get_command(alone)


class LazyGroup(TyperGroup):
    """Commands by name, each a placeholder with its summary until it is resolved."""

    lazy: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {**{name: TyperCommand(name) for name in self.lazy}, **self.commands}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is not None and found.help is None and cmd_name in self.lazy:
            found.help = self.lazy[cmd_name].summary
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in self.lazy:
            self.commands[args[0]] = self.lazy[args[0]].load(args[0])
        return super().resolve_command(ctx, args)


def lazy_group(commands: Mapping[str, LazyCommand]) -> type[LazyGroup]:
    """Return the group class of these commands, for `typer.Typer(cls=...)`."""
    return type("Commands", (LazyGroup,), {"lazy": commands})


@dataclass(frozen=True)
class CommandGroup:
    """Commands behind one word, such as `caw keys create`. help: of the group."""

    help: str
    commands: Mapping[str, LazyCommand]


def installed_groups() -> dict[str, CommandGroup]:
    """Return the groups of other installed packages, which entry points `caw.commands` name; "" needs no word.

    A package whose commands cannot be imported is named, and takes no other command along.
    """
    groups: dict[str, CommandGroup] = {}
    for point in entry_points(group=ENTRY_POINTS):
        try:
            groups |= point.load()
        except Exception as error:
            print(f"caw: the commands of {point.value} cannot be loaded ({error}); install it again", file=sys.stderr)
    return groups
