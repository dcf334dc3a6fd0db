"""The `caw` program: gathers the commands. A new command is one file and one line here."""

from __future__ import annotations

from typing import Annotated

import typer

import caw
from caw.cli.benchmark_command import benchmark
from caw.cli.demo_command import demo
from caw.cli.detect_command import detect
from caw.cli.detection_weights_command import detection_weights
from caw.cli.evaluate_command import evaluate
from caw.cli.generate_command import generate
from caw.cli.label_command import label
from caw.cli.train_evaluator_command import train_evaluator_command
from caw.cli.tune_command import tune_command

app = typer.Typer(
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


app.command()(demo)
app.command()(generate)
app.command()(detect)
app.command("detection-weights")(detection_weights)
app.command()(label)
app.command("train-evaluator")(train_evaluator_command)
app.command("tune")(tune_command)
app.command()(benchmark)
app.add_typer(evaluate, name="evaluate")


def main() -> None:
    """Entry point of the `caw` script."""
    app()
