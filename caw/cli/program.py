"""The `caw` program: its commands and groups. A new command is one file and one entry here."""

from __future__ import annotations

from typing import Annotated

import typer

import caw
from caw.cli.lazy_commands import CommandGroup, LazyCommand, installed_groups, lazy_group
from caw.requirements import namesake

COMMANDS = {
    "demo": LazyCommand("caw.cli.demo_command", "demo"),
    "generate": LazyCommand("caw.cli.generate_command", "generate"),
    "detect": LazyCommand("caw.cli.detect_command", "detect"),
    "serve": LazyCommand("caw.cli.serve_command", "serve"),
    "benchmark": LazyCommand("caw.cli.benchmark_command", "benchmark"),
}
KEYS = {
    "create": LazyCommand("caw.cli.keys_commands", "create"),
    "rotate": LazyCommand("caw.cli.keys_commands", "rotate"),
    "revoke": LazyCommand("caw.cli.keys_commands", "revoke"),
    "list": LazyCommand("caw.cli.keys_commands", "list_keys"),
    "rules": LazyCommand("caw.cli.keys_commands", "rules"),
    "master-key": LazyCommand("caw.cli.keys_commands", "master_key"),
    "reseal": LazyCommand("caw.cli.keys_commands", "reseal"),
}
AUDITS = {
    "export": LazyCommand("caw.cli.audit_commands", "export"),
    "verify": LazyCommand("caw.cli.audit_commands", "verify"),
    "public-key": LazyCommand("caw.cli.audit_commands", "public_key"),
    "report": LazyCommand("caw.cli.audit_commands", "report"),
}
GROUPS = {
    "keys": CommandGroup("Manage a service's keys: who may use it, and which keys mark its texts.", KEYS),
    "audit": CommandGroup("Audit a service: export and verify its receipts, and measure its keys.", AUDITS),
}
# another package's commands come behind these, and replace none of them
GROUPS = {**GROUPS, **installed_groups(), **GROUPS}
COMMANDS = {**COMMANDS, **GROUPS.pop("", CommandGroup("", {})).commands, **COMMANDS}

app = typer.Typer(
    cls=lazy_group(COMMANDS),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks can print local variables, the key among them
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"caw {caw.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Watermark the output of language models, lightly where words matter, and detect it without the model.

    Exit codes: 0 success, 1 success but some input lines were bad, 2 bad usage, 130 interrupted. An error is one
    sentence on stderr; set CAW_TRACEBACK=1 for a traceback.

    Examples:

    - caw demo
    - read -rs CAW_KEY; export CAW_KEY
    - caw generate --model smollm2-135m --prompt "Why is the sky blue?" --chat
    - caw detect --tokenizer smollm2-135m --text "..."
    """
    if stranger := namesake():
        typer.echo(f"caw: {stranger}", err=True)


for _name, _group in GROUPS.items():
    app.add_typer(
        typer.Typer(cls=lazy_group(_group.commands), no_args_is_help=True, rich_markup_mode="markdown"),
        name=_name, help=_group.help,
    )  # fmt: skip
