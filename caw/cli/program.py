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
        "caw.cli.detection_weights_command", "detection_weights", "Make a table of weights for `caw detect --weights`."
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

app = typer.Typer(
    cls=lazy_group(COMMANDS),
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks can print local variables, the key among them
    context_settings={"help_option_names": ["-h", "--help"]},
)
evaluate = typer.Typer(cls=lazy_group(EVALUATIONS), no_args_is_help=True, rich_markup_mode="markdown")


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


app.add_typer(evaluate, name="evaluate")
