"""Every command of `caw` with its options, as Markdown, from the command line itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from caw.cli import app


def command_line() -> str:
    """A section a command: what it does, its options, its examples."""
    return "\n\n".join(_sections(typer.main.get_command(app), ["caw"]))


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


def _sections(group: Any, path: list[str]) -> Iterator[str]:
    for words, command in commands(group, path):
        yield f"## {' '.join(words)}"
        yield _paragraphs(command.help or "")
        rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
        yield "\n".join(["| option | default | what |", "| --- | --- | --- |", *rows])


def _paragraphs(text: str) -> str:
    """A command's help; its examples as one block of code."""
    said, _, examples = text.strip().partition("Examples:\n")
    lines = [line.strip().removeprefix("- ") for line in examples.strip().splitlines()]
    return "\n".join([said.strip(), *(["", "```bash", *lines, "```"] if lines else [])])


def _row(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    value = parameter.default
    shown = not (value is None or value is False or value == "" or callable(value))
    default = "`" + str(value).replace("\n", "\\n") + "`" if shown else ""
    text = " ".join((getattr(parameter, "help", "") or "").split())
    if "|" in (choices := parameter.metavar or ""):
        text += " One of " + ", ".join(f"`{choice}`" for choice in choices.split("|")) + "."
    required = " (required)" if parameter.required else ""
    cells = (names + required, default, text)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
