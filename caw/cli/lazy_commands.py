"""Commands that are imported when they are called, so that `caw --help` is instant; other packages bring theirs too."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

ENTRY_POINTS = "caw.commands"


@dataclass(frozen=True)
class LazyCommand:
    """The location of a command's function, and the first paragraph of its docstring for the command list."""

    module: str
    function: str
    summary: str

    def load(self, name: str) -> Any:
        """Import the module and return the command."""
        alone = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)
        alone.command(name)(getattr(importlib.import_module(self.module), self.function))
        return typer.main.get_command(alone)


class LazyGroup(TyperGroup):
    """Commands by name, each a placeholder with its summary until it is resolved."""

    lazy: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        listed: dict[str, Any] = {name: TyperCommand(name, help=command.summary) for name, command in self.lazy.items()}
        self.commands = {**listed, **self.commands}

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
    """Return the groups of other installed packages, which entry points `caw.commands` name; "" needs no word."""
    return {name: group for point in entry_points(group=ENTRY_POINTS) for name, group in point.load().items()}
