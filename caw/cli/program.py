"""The `caw` program: its commands and groups. A new command is one file and one entry here."""

from __future__ import annotations

from typing import Annotated

import typer

import caw
from caw.cli.lazy_commands import CommandGroup, LazyCommand, installed_groups, lazy_group

# copies of the commands' first docstring paragraphs, because importing the commands is slow; a test compares them
COMMANDS = {
    "demo": LazyCommand(
        "caw.cli.demo_command", "demo",
        "Generate plain, KGW, CAW and drawn outputs of one prompt, and show tokens, p-values and speed.",
    ),
    "generate": LazyCommand(
        "caw.cli.generate_command", "generate",
        "Generate watermarked text from one prompt or from a JSONL file of prompts.",
    ),
    "detect": LazyCommand(
        "caw.cli.detect_command", "detect", "Test text for a watermark; neither the model nor the prompt is needed."
    ),
    "serve": LazyCommand(
        "caw.cli.serve_command", "serve", "Run an OpenAI-compatible server that watermarks every response."
    ),
    "benchmark": LazyCommand(
        "caw.cli.benchmark_command", "benchmark", "Measure the cost of watermarking on this machine."
    ),
}  # fmt: skip
KEYS = {
    "create": LazyCommand(
        "caw.cli.keys_commands", "create", "Create a marking key for a tenant, or an API key with --api."
    ),
    "rotate": LazyCommand(
        "caw.cli.keys_commands", "rotate", "Replace a marking key or an API key by a new one."
    ),
    "revoke": LazyCommand("caw.cli.keys_commands", "revoke", "Revoke a key immediately and permanently."),
    "list": LazyCommand(
        "caw.cli.keys_commands", "list_keys", "List keys with their validity periods and states; secrets are never "
        "shown."
    ),
    "rules": LazyCommand(
        "caw.cli.keys_commands", "rules",
        "Set a tenant's rules, which replace the server's defaults.",
    ),
    "master-key": LazyCommand(
        "caw.cli.keys_commands", "master_key",
        "Print a new random master key, for CAW_MASTER_KEY or a private file.",
    ),
    "reseal": LazyCommand(
        "caw.cli.keys_commands", "reseal", "Re-encrypt all secrets under the first master key, so that older ones can "
        "be removed."
    ),
}  # fmt: skip
AUDITS = {
    "export": LazyCommand(
        "caw.cli.audit_commands", "export",
        "Export the receipt log as JSONL: each entry with its digest, the previous digest and its signature.",
    ),
    "verify": LazyCommand(
        "caw.cli.audit_commands", "verify",
        "Verify the hash chain and the signatures of exported receipts; no database is needed.",
    ),
    "public-key": LazyCommand(
        "caw.cli.audit_commands", "public_key",
        "Print the public key that verifies receipts, for you to publish.",
    ),
    "report": LazyCommand(
        "caw.cli.audit_commands", "report",
        "Measure the false-positive rate and the detection rate of the deployed keys on your own texts.",
    ),
}  # fmt: skip
GROUPS = {
    "keys": CommandGroup("Manage a service's keys: who may use it, and which keys mark its texts.", KEYS),
    "audit": CommandGroup("Audit a service: export and verify its receipts, and measure its keys.", AUDITS),
    **installed_groups(),
}
COMMANDS |= GROUPS.pop("", CommandGroup("", {})).commands

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


for _name, _group in GROUPS.items():
    app.add_typer(
        typer.Typer(cls=lazy_group(_group.commands), no_args_is_help=True, rich_markup_mode="markdown"),
        name=_name, help=_group.help,
    )  # fmt: skip
