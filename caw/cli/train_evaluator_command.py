"""`caw train-evaluator`: evaluator weights for a model, from reference answers with marked key segments, or from what
swapped tokens cost its own texts."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from caw.cli import options as opt
from caw.cli.errors import complain, user_errors
from caw.cli.quantised_option import Quantised, prepare_place
from caw.defaults import RECORD_SIZE
from caw.fitting.labels import TEMPLATE
from caw.fitting.settings import HORIZON, KEYS_PER_TEXT, LabelFile, OwnTexts, Reading, TrainSettings
from caw.io.files import check_paths
from caw.io.inputs import read_text
from caw.requirements import require
from caw.triton_kernels.op_indices import TRANSFORMS

OWN, FEATURES, TRAINING = "Without labels", "Features", "Training"
COLUMNS = ("auroc", "average_precision", "f1")


def train_evaluator_command(
    model: Annotated[str, typer.Option(help="The model it is for: smollm2-135m, a .gguf file, a folder or a hub id.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Weights to write, OUTPUT.safetensors.")],
    labels: Annotated[Path | None, typer.Option(help="JSONL of key segments, one document per line.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(envvar="CAW_DATA_DIR", help="Folder with the labelled texts, DATASET/SPLIT.jsonl.")
    ] = None,
    self_: Annotated[
        bool,
        typer.Option(
            "--self", help="Without labels: from what swapped tokens cost its own texts.", rich_help_panel=OWN
        ),
    ] = False,
    prompts: Annotated[
        Path | None,
        typer.Option(help='JSONL, {"prompt": ...} a line [240 everyday ones; none with --texts].', rich_help_panel=OWN),
    ] = None,
    max_prompts: Annotated[
        int | None, typer.Option(help="Use at most this many, from the start.", min=1, rich_help_panel=OWN)
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Use the model's chat template [if it has one].", rich_help_panel=OWN),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(help="Texts of the model: lines of `caw generate --with-prompt`.", rich_help_panel=OWN),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help=f"Longest text [{OwnTexts.max_new_tokens}].", min=1, rich_help_panel=OWN)
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help=f"Of a sampled text of each prompt, besides the greedy one [{OwnTexts.temperature}]; 0 for none.",
            min=0,
            rich_help_panel=OWN,
        ),
    ] = None,
    horizon: Annotated[
        int | None, typer.Option(help=f"Following tokens that a swap may harm [{HORIZON}].", rich_help_panel=OWN)
    ] = None,
    random_keys: Annotated[
        int | None,
        typer.Option("--keys", help=f"Random keys that swap tokens of a text [{KEYS_PER_TEXT}].", rich_help_panel=OWN),
    ] = None,
    places: Annotated[
        int | None, typer.Option(help="Look at this many places of a text [all].", rich_help_panel=OWN)
    ] = None,
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
    top_k: Annotated[
        int, typer.Option(help="How many of a position's greatest probabilities it reads.", rich_help_panel=FEATURES)
    ] = RECORD_SIZE,
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
    quantised: Quantised = None,
    device: opt.Device = None,
    threads: opt.Threads = None,
) -> None:
    """Train an evaluator for a model: one pass of the model over labelled answers, then a small network.

    With --self no labels are needed: the model continues prompts, random keys swap tokens, and the network learns where
    a swap makes what the model had written behind it least likely.

    A label line is {"dataset": ..., "split": ..., "index": ..., "spans": [[start, end], ...]}: character offsets of the
    segments that carry the quality of a reference answer. Writes OUTPUT.json beside the weights: data, features, and
    what was measured on held-out documents.

    Examples:

    - caw train-evaluator --model smollm2-135m --labels labels.jsonl --data-dir data --output my.safetensors
    - caw train-evaluator --model ./my-model --self --output my.safetensors
    - caw train-evaluator --model ./my-model --self --prompts prompts.jsonl --texts written.jsonl -o my.safetensors
    - caw generate --model smollm2-135m --policy capacity --evaluator my.safetensors --prompt "..."
    """
    with user_errors():
        require("scikit-learn", "training evaluators")
        from caw.evaluator.token_classes import CLASSES
        from caw.fitting.pipeline import default_specs, train_evaluator

        of_labels = {"--labels": labels, "--prefix-file": prefix_file, "--statement": statement}
        own_texts = {
            "prompts": prompts, "count": max_prompts, "chat": chat, "written": texts, "max_new_tokens": max_new_tokens,
            "temperature": temperature,
        }  # fmt: skip
        own_swaps = {"horizon": horizon, "keys": random_keys, "places": places}
        _check_way(
            self_, {**of_labels, "--template": None if template == TEMPLATE else template}, own_texts | own_swaps
        )
        read = {"--labels": labels, "--prefix-file": prefix_file, "--prompts": prompts, "--texts": texts}
        written = {"--output": output, "OUTPUT.json": output.with_suffix(".json")}
        check_paths({"--model": model, "--positions": positions, **read}, written)
        specs = default_specs(previous, following, len(CLASSES) if token_classes else 0, line_ends, top_k)
        if transform is not None:
            specs = [replace(specs[0], transform=transform)]
        settings = TrainSettings(hidden=hidden, max_epochs=max_epochs, seed=seed)
        prefix = read_text(prefix_file, translate=True) if prefix_file else ""
        place = prepare_place(model, device, threads, dtype, quantised)
        reading = Reading(model, template, prefix, positions, place, dtype, quantised)
        how: dict[str, Any] = {"spec": specs, "settings": settings, "command": shlex.join(["caw", *sys.argv[1:]])}
        if self_:
            result = _train_own(reading, output, seed, own_texts, own_swaps, how)
        elif labels is None or data_dir is None:
            raise ValueError("expected --labels and --data-dir, or --self, got neither; add --self to train without")
        else:
            result = train_evaluator(
                reading, LabelFile(labels, data_dir, statement), output, line_ends=line_ends, **how
            )
        _show(result["metrics"])
        complain(f"wrote {output} and {output.with_suffix('.json')}")


def _check_way(own: bool, of_labels: dict[str, Any], of_own: dict[str, Any]) -> None:
    """Refuse options of the other way to train."""
    given = [name for name, value in (of_labels if own else of_own).items() if value is not None]
    if given and own:
        raise ValueError(f"--self trains without labels, {given[0]} belongs to labelled texts; leave one out")
    if given:
        option = {"count": "max-prompts", "written": "texts"}.get(given[0], given[0].replace("_", "-"))
        raise ValueError(f"--{option} says what --self trains on, --self is not given; add it")


def _train_own(
    reading: Reading, output: Path, seed: int, texts: dict[str, Any], swaps: dict[str, Any], how: dict[str, Any]
) -> dict[str, Any]:
    """texts, swaps: arguments of `OwnTexts` and `SwapSettings`; None = the default."""
    from caw.evaluator.network import beta_for
    from caw.fitting.self_training import train_on_own_texts
    from caw.fitting.swaps import SwapSettings

    texts, swaps = ({name: v for name, v in given.items() if v is not None} for given in (texts, swaps))
    if texts.get("temperature") == 0:
        texts["temperature"] = None
    own = OwnTexts(**texts, seed=seed)
    # as strongly as a capacity policy for this model marks what has no importance
    measured = SwapSettings(**swaps, strength=beta_for(reading.model), seed=seed)
    return train_on_own_texts(reading, own, output, swaps=measured, **how)


def _show(metrics: dict[str, Any]) -> None:
    """Figures on held-out documents, the untrained ways of judging a token beside the network."""
    from rich.console import Console
    from rich.table import Table

    table = Table("held-out documents", *(name.replace("_", " ") for name in COLUMNS))
    for judge, figures in metrics["evaluators"].items():
        table.add_row(judge.replace("_", " "), *(f"{figures[name]:.3f}" for name in COLUMNS))
    Console().print(table)
