"""`caw train-evaluator`: train an evaluator for a model, from reference answers with key segments or from the effect of
token swaps on the model's own texts.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from caw.cli import options as opt
from caw.cli.errors import complain, user_errors
from caw.cli.quantization_option import Quantized, prepare_place
from caw.defaults import RECORD_SIZE
from caw.io.files import check_paths
from caw.io.inputs import read_text
from caw.op_indices import TRANSFORMS, Transform
from caw.requirements import require
from caw_lab.training.labels import TEMPLATE
from caw_lab.training.settings import (
    HORIZON,
    KEYS_PER_TEXT,
    PLACES_PER_TEXT,
    LabelFile,
    OwnTexts,
    Reading,
    TrainSettings,
)

OWN, FEATURES, TRAINING = "Without labels", "Features", "Training"
COLUMNS = ("auroc", "average_precision", "f1")


def train_evaluator_command(
    model: Annotated[
        str, typer.Option(help="Model that the evaluator is for: smollm2-135m, a .gguf file, a folder or a hub id.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Evaluator file to write, ending in .safetensors.")],
    labels: Annotated[Path | None, typer.Option(help="JSONL file of key segments, one document per line.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(envvar="CAW_DATA_DIR", help="Folder of the labelled texts, as DATASET/SPLIT.jsonl.")
    ] = None,
    self_: Annotated[
        bool,
        typer.Option(
            "--self",
            help="Train without labels, from the effect of token swaps on the model's own texts.",
            rich_help_panel=OWN,
        ),
    ] = False,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help='JSONL file of prompts, {"prompt": ...} per line [240 everyday prompts; none with --texts].',
            rich_help_panel=OWN,
        ),
    ] = None,
    max_prompts: Annotated[
        int | None, typer.Option(help="Maximum prompts to use, from the start.", min=1, rich_help_panel=OWN)
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Use the model's chat template [if it has one].", rich_help_panel=OWN),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(help="Existing texts of the model: output of `caw generate --with-prompt`.", rich_help_panel=OWN),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help=f"Maximum new tokens [{OwnTexts.max_new_tokens}].", min=1, rich_help_panel=OWN)
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help=f"Sampling temperature of a second text per prompt, besides the greedy one; 0 turns it off "
            f"[{OwnTexts.temperature}].",
            min=0,
            rich_help_panel=OWN,
        ),
    ] = None,
    horizon: Annotated[
        int | None,
        typer.Option(
            help=f"Horizon: following tokens over which a swap's harm is measured [{HORIZON}].", rich_help_panel=OWN
        ),
    ] = None,
    random_keys: Annotated[
        int | None,
        typer.Option("--keys", help=f"Random keys per text [{KEYS_PER_TEXT}].", rich_help_panel=OWN),
    ] = None,
    places: Annotated[
        int | None, typer.Option(help=f"Maximum positions per text [{PLACES_PER_TEXT}].", rich_help_panel=OWN)
    ] = None,
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
    seed: Annotated[
        int, opt.panel(TRAINING, "Random seed of the training, and with --self also of texts and swaps.")
    ] = 0,
    dtype: Annotated[
        str | None,
        opt.panel(
            opt.RUNNING, "Data type of the model [float32; auto with --self].", "--dtype", metavar=opt.DTYPE_NAMES
        ),
    ] = None,
    quantization: Quantized = None,
    device: opt.Device = None,
    threads: opt.Threads = None,
    quiet: opt.Quiet = False,
) -> None:
    """Train an evaluator for a model, from labelled answers or from the model's own texts.

    With --self no labels are needed: the model continues prompts, random keys swap tokens, and the network learns where
    a swap most reduces the likelihood of the model's own continuation.

    A label line is {"dataset": ..., "split": ..., "index": ..., "spans": [[start, end], ...]}, with character offsets
    of the key segments of a reference answer. OUTPUT.json records data, features and metrics on held-out documents.

    Examples:

    - caw train-evaluator --model smollm2-135m --labels labels.jsonl --data-dir data --output my.safetensors
    - caw train-evaluator --model ./my-model --self --positions measured --output my.safetensors
    - caw train-evaluator --model my.gguf --quantization file-fast --self --positions measured -o my.safetensors
    - caw train-evaluator --model ./my-model --self --prompts prompts.jsonl --texts written.jsonl -o my.safetensors
    - caw generate --model smollm2-135m --policy capacity --evaluator my.safetensors --prompt "..."
    """
    with user_errors():
        require("scikit-learn", "training evaluators")
        from caw.evaluator.token_classes import CLASSES
        from caw_lab.training.pipeline import default_specs, train_evaluator

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
            specs = [replace(specs[0], transform=cast(Transform, transform))]
        settings = TrainSettings(hidden=hidden, max_epochs=max_epochs, seed=seed)
        prefix = read_text(prefix_file, translate=True) if prefix_file else ""
        dtype = dtype or ("auto" if self_ else "float32")
        place = prepare_place(model, device, threads, dtype, quantization)
        reading = Reading(model, template, prefix, positions, place, dtype, quantization)
        how: dict[str, Any] = {"spec": specs, "settings": settings, "command": shlex.join(["caw", *sys.argv[1:]])}
        if self_:
            result = _train_own(reading, output, seed, own_texts, own_swaps, how)
        elif labels is None or data_dir is None:
            raise ValueError(
                "--labels with --data-dir, or --self, is required, got neither; add --self to train without labels"
            )
        else:
            result = train_evaluator(
                reading, LabelFile(labels, data_dir, statement), output, line_ends=line_ends, **how
            )
        _show(result["metrics"])
        complain(f"wrote {output} and {output.with_suffix('.json')}")


def _check_way(own: bool, of_labels: dict[str, Any], of_own: dict[str, Any]) -> None:
    """Reject options that belong to the other way of training."""
    given = [name for name, value in (of_labels if own else of_own).items() if value is not None]
    if given and own:
        raise ValueError(f"{given[0]} is for training from labels, got --self as well; leave one out")
    if given:
        option = {"count": "max-prompts", "written": "texts"}.get(given[0], given[0].replace("_", "-"))
        raise ValueError(f"--{option} requires --self; add it")


def _train_own(
    reading: Reading, output: Path, seed: int, texts: dict[str, Any], swaps: dict[str, Any], how: dict[str, Any]
) -> dict[str, Any]:
    """texts, swaps: arguments of `OwnTexts` and `SwapSettings`; None = default."""
    from caw.evaluator.network import beta_for
    from caw_lab.training.self_training import train_on_own_texts
    from caw_lab.training.swaps import SwapSettings

    texts, swaps = ({name: v for name, v in given.items() if v is not None} for given in (texts, swaps))
    if texts.get("temperature") == 0:
        texts["temperature"] = None
    own = OwnTexts(**texts, seed=seed)
    # as strongly as a capacity policy for this model marks what has no importance
    measured = SwapSettings(**swaps, strength=beta_for(reading.model), seed=seed)
    return train_on_own_texts(reading, own, output, swaps=measured, **how)


def _show(metrics: dict[str, Any]) -> None:
    """Print the metrics on held-out documents, with the untrained baselines."""
    from rich.console import Console
    from rich.table import Table

    table = Table("held-out documents", *(name.replace("_", " ") for name in COLUMNS))
    for judge, figures in metrics["evaluators"].items():
        table.add_row(judge.replace("_", " "), *(f"{figures[name]:.3f}" for name in COLUMNS))
    Console().print(table)
