"""A group of commands whose modules are imported when one of them is asked for, not when they are listed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class LazyCommand:
    """Where a command's function is, and the first paragraph of its docstring, which the list of commands shows."""

    module: str
    function: str
    summary: str

    def load(self, name: str) -> Any:
        """The command itself; imports its module."""
        alone = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)
        alone.command(name)(getattr(importlib.import_module(self.module), self.function))
        return typer.main.get_command(alone)


class LazyGroup(TyperGroup):
    """Commands by name, each standing for itself with its summary until it is resolved."""

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
    """The class of a group of these commands, for `typer.Typer(cls=...)`."""
    return type("Commands", (LazyGroup,), {"lazy": commands})
