"""`caw train-evaluator`: evaluator weights for a model, from reference answers with marked key segments."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from caw.cli import options as opt
from caw.cli.errors import complain, user_errors
from caw.fitting.labels import TEMPLATE
from caw.fitting.settings import LabelFile, Reading, TrainSettings
from caw.io.files import check_paths
from caw.io.inputs import read_text
from caw.requirements import require
from caw.triton_kernels.op_indices import TRANSFORMS

FEATURES, TRAINING = "Features", "Training"
COLUMNS = ("auroc", "average_precision", "f1")


def train_evaluator_command(
    model: Annotated[str, typer.Option(help="The model it is for: smollm2-135m, a .gguf file, a folder or a hub id.")],
    labels: Annotated[Path, typer.Option(help="JSONL of key segments, one document per line.")],
    data_dir: Annotated[
        Path, typer.Option(envvar="CAW_DATA_DIR", help="Folder with the labelled texts, DATASET/SPLIT.jsonl.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Weights to write, OUTPUT.safetensors.")],
    positions: Annotated[
        Path | None, typer.Option(help="Folder that keeps the model's pass, so that another training can skip it.")
    ] = None,
    template: Annotated[str, typer.Option(help="The prompt before each reference answer.")] = TEMPLATE,
    prefix_file: Annotated[
        Path | None, typer.Option(help="Text to put before every prompt, such as few-shot examples.")
    ] = None,
    statement: Annotated[
        str | None,
        typer.Option(help="How answers are stated instead of #### N, such as 'The answer is {answer}.'"),
    ] = None,
    transform: Annotated[
        str | None,
        typer.Option(
            help="Transform of the probabilities [the best of all].",
            metavar="|".join(TRANSFORMS),
            rich_help_panel=FEATURES,
        ),
    ] = None,
    previous: Annotated[
        int, typer.Option(help="How many positions before the token it reads.", rich_help_panel=FEATURES)
    ] = 1,
    following: Annotated[
        int, typer.Option("--next", help="How many positions after the token it reads.", rich_help_panel=FEATURES)
    ] = 1,
    token_classes: Annotated[
        bool, typer.Option(help="Also read the probability of digits, names, ...", rich_help_panel=FEATURES)
    ] = True,
    line_ends: Annotated[
        bool, typer.Option(help="Count tokens that end a line as key.", rich_help_panel=TRAINING)
    ] = True,
    hidden: Annotated[int, typer.Option(help="Width of the network.", rich_help_panel=TRAINING)] = TrainSettings.hidden,
    max_epochs: Annotated[int, typer.Option(rich_help_panel=TRAINING)] = TrainSettings.max_epochs,
    seed: Annotated[int, typer.Option(rich_help_panel=TRAINING)] = 0,
    dtype: opt.DType = "float32",
    device: opt.Device = None,
    threads: opt.Threads = None,
) -> None:
    """Train an evaluator for a model: one pass of the model over labelled answers, then a small network.

    A label line is {"dataset": ..., "split": ..., "index": ..., "spans": [[start, end], ...]}: character offsets of the
    segments that carry the quality of a reference answer. Writes OUTPUT.json beside the weights: data, features, and
    what was measured on held-out documents.

    Examples:

    - caw train-evaluator --model smollm2-135m --labels labels.jsonl --data-dir data --output my.safetensors
    - caw generate --model smollm2-135m --policy capacity --evaluator my.safetensors --prompt "..."
    """
    with user_errors():
        require("scikit-learn", "training evaluators")
        from caw.evaluator.token_classes import CLASSES
        from caw.fitting.pipeline import default_specs, train_evaluator

        check_paths(
            {"--model": model, "--labels": labels, "--prefix-file": prefix_file, "--positions": positions},
            {"--output": output, "OUTPUT.json": output.with_suffix(".json")},
        )
        classes = len(CLASSES) if token_classes else 0
        specs = default_specs(previous, following, classes, line_ends)
        if transform is not None:
            specs = [replace(specs[0], transform=transform)]
        settings = TrainSettings(hidden=hidden, max_epochs=max_epochs, seed=seed)
        prefix = read_text(prefix_file, translate=True) if prefix_file else ""
        reading = Reading(model, template, prefix, positions, opt.prepare_device(device, threads), dtype)
        result = train_evaluator(
            reading, LabelFile(labels, data_dir, statement), output, specs, settings, line_ends=line_ends,
            command=shlex.join(["caw", *sys.argv[1:]]),
        )  # fmt: skip
        _show(result["metrics"])
        complain(f"wrote {output} and {output.with_suffix('.json')}")


def _show(metrics: dict[str, Any]) -> None:
    """Figures on held-out documents, the untrained ways of judging a token beside the network."""
    from rich.console import Console
    from rich.table import Table

    table = Table("held-out documents", *(name.replace("_", " ") for name in COLUMNS))
    for judge, figures in metrics["evaluators"].items():
        table.add_row(judge.replace("_", " "), *(f"{figures[name]:.3f}" for name in COLUMNS))
    Console().print(table)
