"""The `caw` program: its commands and groups. A new command is one file and one entry here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

import caw


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
    "detection-weights": LazyCommand(
        "caw.cli.detection_weights_command", "detection_weights",
        "Create a token-weight table for `caw detect --weights`, or a calibration for weights from a model.",
    ),
    "label": LazyCommand(
        "caw.cli.label_command", "label",
        "Label the key segments of reference answers, for `caw train-evaluator`.",
    ),
    "train-evaluator": LazyCommand(
        "caw.cli.train_evaluator_command", "train_evaluator_command",
        "Train an evaluator for a model, from labelled answers or from the model's own texts.",
    ),
    "tune": LazyCommand(
        "caw.cli.tune_command", "tune_command",
        "Choose theta and beta of the capacity policy on your own prompts.",
    ),
    "benchmark": LazyCommand(
        "caw.cli.benchmark_command", "benchmark", "Measure the cost of watermarking on this machine."
    ),
}  # fmt: skip
EVALUATIONS = {
    "run": LazyCommand(
        "caw.cli.evaluate_run_command", "evaluate_run_command",
        "Generate answers with and without watermarks, grade them, and run detection on them.",
    ),
    "attack": LazyCommand(
        "caw.cli.evaluate_attack_command", "evaluate_attack_command",
        "Attack the texts of a run and run detection again.",
    ),
    "perplexity": LazyCommand(
        "caw.cli.evaluate_perplexity_command", "evaluate_perplexity_command",
        "Compute the perplexity of a run's texts under a second model, for the report.",
    ),
    "report": LazyCommand(
        "caw.cli.evaluate_report_command", "evaluate_report_command", "Write the tables and figures of a run."
    ),
    "evaluator": LazyCommand(
        "caw.cli.evaluate_evaluator_command", "evaluate_evaluator_command",
        "Measure how well evaluators identify key tokens on held-out documents.",
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
    "upgrade": LazyCommand(
        "caw.cli.keys_commands", "upgrade",
        "Upgrade the registry of an earlier version. Back it up and stop its servers first.",
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
GROUPS = {"evaluate": EVALUATIONS, "keys": KEYS, "audit": AUDITS}

app = typer.Typer(
    cls=lazy_group(COMMANDS),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks can print local variables, the key among them
    context_settings={"help_option_names": ["-h", "--help"]},
)
evaluate = typer.Typer(cls=lazy_group(EVALUATIONS), no_args_is_help=True, rich_markup_mode="markdown")
keys = typer.Typer(cls=lazy_group(KEYS), no_args_is_help=True, rich_markup_mode="markdown")
audit = typer.Typer(cls=lazy_group(AUDITS), no_args_is_help=True, rich_markup_mode="markdown")


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


@evaluate.callback()
def measure() -> None:
    """Measure watermarks and evaluators."""


@keys.callback()
def guard() -> None:
    """Manage a service's keys: who may use it, and which keys mark its texts."""


@audit.callback()
def prove() -> None:
    """Audit a service: export and verify its receipts, and measure its keys."""


app.add_typer(evaluate, name="evaluate")
app.add_typer(keys, name="keys")
app.add_typer(audit, name="audit")
