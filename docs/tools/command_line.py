"""Every command of `caw` as Markdown, from the command line itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from caw.cli import app


def command_line() -> str:
    """A row a command: its name and the first sentence of its help."""
    rows = [
        f"| `{' '.join(words)}` | {' '.join((command.help or '').partition('Examples:')[0].split()).split('. ')[0]} |"
        for words, command in commands(typer.main.get_command(app), ["caw"])
    ]
    return "\n".join(["| command | what it does |", "| --- | --- |", *rows])


def commands(group: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
    """(words, command) of all commands below a group, in the order of `--help`."""
    context = group.make_context(path[-1], [], resilient_parsing=True)
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])  # a listed command is loaded only when it is resolved
        words = [*path, name]
        if hasattr(command, "list_commands"):
            yield from commands(command, words)
        else:
            yield words, command
