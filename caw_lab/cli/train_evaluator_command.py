"""`caw train-evaluator`: train an evaluator for a model, from reference answers with key segments."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from caw.cli import options as opt
from caw.cli.command import command, options_of
from caw.cli.errors import complain, user_errors
from caw.cli.place import Place
from caw.defaults import RECORD_SIZE
from caw.io.files import check_paths
from caw.io.inputs import read_text
from caw.op_indices import TRANSFORMS, Transform
from caw.requirements import require
from caw_lab.training.labels import TEMPLATE
from caw_lab.training.settings import LabelFile, Reading, TrainSettings

FEATURES, TRAINING = "Features", "Training"
COLUMNS = ("auroc", "average_precision", "f1")


@command(place=options_of(Place, dtype="float32"))
def train_evaluator_command(
    *,
    model: Annotated[
        str, typer.Option(help="Model that the evaluator is for: smollm2-135m, a .gguf file, a folder or a hub id.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Evaluator file to write, ending in .safetensors.")],
    labels: Annotated[Path, typer.Option(help="JSONL file of key segments, one document per line.")],
    data_dir: Annotated[
        Path, typer.Option(envvar="CAW_DATA_DIR", help="Folder of the labelled texts, as DATASET/SPLIT.jsonl.")
    ],
    positions: Annotated[
        Path | None, typer.Option(help="Folder that caches the model's pass for later training runs.")
    ] = None,
    template: Annotated[str, typer.Option(help="Prompt format before each reference answer.")] = TEMPLATE,
    prefix_file: Annotated[Path | None, typer.Option(help="Text before every prompt, e.g. few-shot examples.")] = None,
    statement: Annotated[
        str | None,
        typer.Option(help="Format of final answers instead of #### N, such as 'The answer is {answer}.'"),
    ] = None,
    transform: Annotated[
        str | None,
        typer.Option(
            help="Probability transform [the best on validation data].",
            metavar="|".join(TRANSFORMS),
            rich_help_panel=FEATURES,
        ),
    ] = None,
    previous: Annotated[
        int, typer.Option(help="Positions before the token that the network reads.", rich_help_panel=FEATURES)
    ] = 1,
    following: Annotated[
        int, typer.Option("--next", help="Positions after the token that the network reads.", rich_help_panel=FEATURES)
    ] = 1,
    top_k: Annotated[
        int, typer.Option(help="Top probabilities per position that the network reads.", rich_help_panel=FEATURES)
    ] = RECORD_SIZE,
    token_classes: Annotated[
        bool,
        typer.Option(help="Also read the probability of token classes (digits, names, ...).", rich_help_panel=FEATURES),
    ] = True,
    line_ends: Annotated[
        bool, typer.Option(help="Label tokens that end a line as key.", rich_help_panel=TRAINING)
    ] = True,
    hidden: Annotated[
        int, typer.Option(help="Hidden width of the network.", rich_help_panel=TRAINING)
    ] = TrainSettings.hidden,
    max_epochs: Annotated[int, opt.panel(TRAINING, "Maximum epochs.")] = TrainSettings.max_epochs,
    seed: Annotated[int, opt.panel(TRAINING, "Random seed of the training.")] = 0,
    place: dict[str, Any],
    quiet: opt.Quiet = False,
) -> None:
    """Train an evaluator for a model, from labelled answers.

    A label line is {"dataset": ..., "split": ..., "index": ..., "spans": [[start, end], ...]}, with character offsets
    of the key segments of a reference answer. OUTPUT.json records data, features and metrics on held-out documents.

    Examples:

    - caw train-evaluator --model smollm2-135m --labels labels.jsonl --data-dir data --output my.safetensors
    - caw generate --model smollm2-135m --policy capacity --evaluator my.safetensors --prompt "..."
    """
    with user_errors():
        require("scikit-learn", "training evaluators")
        from caw.evaluator.token_classes import CLASSES
        from caw_lab.training.pipeline import default_specs, train_evaluator

        read = {"--labels": labels, "--prefix-file": prefix_file}
        written = {"--output": output, "OUTPUT.json": output.with_suffix(".json")}
        check_paths({"--model": model, "--positions": positions, **read}, written)
        specs = default_specs(previous, following, len(CLASSES) if token_classes else 0, line_ends, top_k)
        if transform is not None:
            specs = [replace(specs[0], transform=cast(Transform, transform))]
        settings = TrainSettings(hidden=hidden, max_epochs=max_epochs, seed=seed)
        prefix = read_text(prefix_file, translate=True) if prefix_file else ""
        on = Place(**place)
        reading = Reading(model, template, prefix, positions, on.prepare(model), on.dtype, on.quantization)
        result = train_evaluator(
            reading, LabelFile(labels, data_dir, statement), output, specs, settings, line_ends=line_ends,
            command=shlex.join(["caw", *sys.argv[1:]]),
        )  # fmt: skip
        _show(result["metrics"])
        complain(f"wrote {output} and {output.with_suffix('.json')}")


def _show(metrics: dict[str, Any]) -> None:
    """Print the metrics on held-out documents, with the untrained baselines."""
    from rich.console import Console
    from rich.table import Table

    table = Table("held-out documents", *(name.replace("_", " ") for name in COLUMNS))
    for judge, figures in metrics["evaluators"].items():
        table.add_row(judge.replace("_", " "), *(f"{figures[name]:.3f}" for name in COLUMNS))
    Console().print(table)
