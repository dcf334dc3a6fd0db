"""The `caw` program: names the commands. A new command is one file and one entry here."""

from __future__ import annotations

from typing import Annotated

import typer

import caw
from caw.cli.lazy_group import LazyCommand, lazy_group

# the sentences are the first paragraphs of the commands' docstrings, which would take long to import; a test compares
COMMANDS = {
    "demo": LazyCommand(
        "caw.cli.demo_command", "demo",
        "Show one prompt's plain, KGW and CAW outputs, token by token, each with its p-value and speed.",
    ),
    "generate": LazyCommand(
        "caw.cli.generate_command", "generate",
        "Generate (watermarked) texts from one prompt, or from a JSONL file of prompts.",
    ),
    "detect": LazyCommand(
        "caw.cli.detect_command", "detect", "Test texts for a watermark, without the model and without the prompt."
    ),
    "serve": LazyCommand(
        "caw.cli.serve_command", "serve", "Serve a model as OpenAI's interface does, with every text marked."
    ),
    "detection-weights": LazyCommand(
        "caw.cli.detection_weights_command", "detection_weights",
        "Make a table of weights for `caw detect --weights`, or a calibration of weights from a model.",
    ),
    "label": LazyCommand(
        "caw.cli.label_command", "label",
        "Mark the segments of reference answers that carry their quality, for `caw train-evaluator`.",
    ),
    "train-evaluator": LazyCommand(
        "caw.cli.train_evaluator_command", "train_evaluator_command",
        "Train an evaluator for a model: one pass of the model over labelled answers, then a small network.",
    ),
    "tune": LazyCommand(
        "caw.cli.tune_command", "tune_command",
        "Choose theta (and beta) for `caw generate --policy capacity` on your own prompts.",
    ),
    "benchmark": LazyCommand(
        "caw.cli.benchmark_command", "benchmark", "Measure what watermarking costs on this machine."
    ),
}  # fmt: skip
EVALUATIONS = {
    "run": LazyCommand(
        "caw.cli.evaluate_run_command", "evaluate_run_command",
        "Generate answers with and without watermarks, grade them, and test them for the marks.",
    ),
    "attack": LazyCommand(
        "caw.cli.evaluate_attack_command", "evaluate_attack_command",
        "Edit the texts of a run, marked and unmarked ones, and test them again for marks.",
    ),
    "perplexity": LazyCommand(
        "caw.cli.evaluate_perplexity_command", "evaluate_perplexity_command",
        "Compute the perplexity of a run's texts under a second model, for the box plots and p-values of the report.",
    ),
    "report": LazyCommand(
        "caw.cli.evaluate_report_command", "evaluate_report_command", "Write the tables and figures of an evaluation."
    ),
    "evaluator": LazyCommand(
        "caw.cli.evaluate_evaluator_command", "evaluate_evaluator_command",
        "Measure how well evaluators tell key tokens from others, on held-out documents.",
    ),
}  # fmt: skip
KEYS = {
    "create": LazyCommand(
        "caw.cli.keys_commands", "create", "Make a marking key for a tenant, or with --api an API key."
    ),
    "rotate": LazyCommand(
        "caw.cli.keys_commands", "rotate", "Let a new key take over from one that marks, or from an API key."
    ),
    "revoke": LazyCommand("caw.cli.keys_commands", "revoke", "End a key at once, for good."),
    "list": LazyCommand(
        "caw.cli.keys_commands", "list_keys", "List keys with their windows and states, never their secrets."
    ),
    "rules": LazyCommand(
        "caw.cli.keys_commands", "rules",
        "Say what of a tenant's texts is marked, in place of the server's own rules.",
    ),
    "master-key": LazyCommand(
        "caw.cli.keys_commands", "master_key",
        "Print a new random master key, for CAW_MASTER_KEY or a private file.",
    ),
    "reseal": LazyCommand(
        "caw.cli.keys_commands", "reseal", "Seal all secrets under the first master key, so that the others can go."
    ),
    "upgrade": LazyCommand(
        "caw.cli.keys_commands", "upgrade",
        "Bring the registry of an earlier version to this one's form: keep a copy, stop its servers, then run this.",
    ),
}  # fmt: skip
AUDITS = {
    "export": LazyCommand(
        "caw.cli.audit_commands", "export",
        "Write the receipts as JSONL: every entry with its digest, the one before, and its signature.",
    ),
    "verify": LazyCommand(
        "caw.cli.audit_commands", "verify",
        "Check the chain and the signatures of receipts, without their database.",
    ),
    "public-key": LazyCommand(
        "caw.cli.audit_commands", "public_key",
        "Print the public key that receipts are verified with; publish it.",
    ),
    "report": LazyCommand(
        "caw.cli.audit_commands", "report",
        "Measure the deployed keys: false alarms on your own unmarked texts, and how many marked texts are found.",
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
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Watermark the text of language models, more gently where words matter, and detect it without the model.

    Exit codes: 0 done, 1 done but some input lines were bad, 2 bad usage, 130 interrupted. Errors go to stderr in one
    sentence; CAW_TRACEBACK=1 shows where they come from.

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
    """Keep the keys of a service: who may use it, and with which keys it marks."""


@audit.callback()
def prove() -> None:
    """Show what a service marked, and how well its keys do."""


app.add_typer(evaluate, name="evaluate")
app.add_typer(keys, name="keys")
app.add_typer(audit, name="audit")
