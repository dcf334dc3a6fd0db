"""`caw evaluate evaluator`: how well evaluators identify key tokens, and which inputs help."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from caw.cli import options as opt
from caw.cli.errors import complain, user_errors
from caw.cli.quantization_option import Quantized, prepare_place
from caw.defaults import RECORD_SIZE
from caw.io.files import check_paths, write_text
from caw.io.inputs import read_text
from caw.io.progress import Bar
from caw.op_indices import TRANSFORMS, Transform
from caw.requirements import require
from caw_lab.training.labels import TEMPLATE, digest
from caw_lab.training.settings import QUICK, WINDOWS, LabelFile, Reading, TrainSettings

if TYPE_CHECKING:
    import torch

    from caw_lab.training import ablation
    from caw_lab.training.positions import Positions

OUTPUT, TRAINING = "Output", "Training"


@dataclass(frozen=True)
class Output:
    """Output files. `write` is called after each result, so an interrupted run keeps what it has."""

    json: Path | None
    table: Path | None
    plot: Path | None

    def write(self, results: Mapping[str, ablation.Measured], about: Mapping[str, Any], *, last: bool) -> None:
        from caw_lab.training import ablation

        if self.json:
            write_text(self.json, json.dumps(ablation.as_json(results), indent=1) + "\n")
        if self.table:
            write_text(self.table, ablation.as_markdown(results, about))
        if self.plot and last:
            ablation.plot(ablation.as_json(results), self.plot)

    def say(self) -> None:
        for path in filter(None, (self.json, self.table, self.plot)):
            complain(f"wrote {path}")


def evaluate_evaluator_command(
    model: Annotated[
        str, typer.Option(help="Model that the evaluator is for: smollm2-135m, a .gguf file, a folder or a hub id.")
    ],
    labels: Annotated[Path, typer.Option(help="JSONL file of key segments, one document per line.")],
    data_dir: Annotated[
        Path, typer.Option(envvar="CAW_DATA_DIR", help="Folder of the labelled texts, as DATASET/SPLIT.jsonl.")
    ],
    evaluator: Annotated[
        str | None, typer.Option(help="Evaluator: a shipped name or a .safetensors file [the model's own].")
    ] = None,
    positions: Annotated[
        Path | None,
        typer.Option(help="Folder that caches the model's pass over the texts, see `caw train-evaluator`."),
    ] = None,
    template: Annotated[str, typer.Option(help="Prompt format before each reference answer.")] = TEMPLATE,
    prefix_file: Annotated[Path | None, typer.Option(help="Text before every prompt, e.g. few-shot examples.")] = None,
    statement: Annotated[
        str | None, typer.Option(help="Format of final answers, as for `caw train-evaluator`.")
    ] = None,
    line_ends: Annotated[
        bool | None, typer.Option(help="Label tokens that end a line as key [as in the training of --evaluator].")
    ] = None,
    train: Annotated[
        bool | None,
        opt.panel(
            TRAINING,
            "Train the variants of the ablation [if --evaluator was trained on these labels].",
            "--train/--no-train",
        ),
    ] = None,
    seeds: Annotated[int, opt.panel(TRAINING, "Training runs per variant.", min=1)] = 5,
    transforms: Annotated[str, opt.panel(TRAINING, "Probability transforms to try, in this order.")] = ",".join(
        TRANSFORMS
    ),
    window: Annotated[
        str | None, opt.panel(TRAINING, "Window to try; others are skipped.", metavar="|".join(WINDOWS))
    ] = None,
    top_k: Annotated[
        str, opt.panel(TRAINING, "Numbers of top probabilities per position to try, e.g. 10,25,50,100.")
    ] = str(RECORD_SIZE),
    max_epochs: Annotated[int, opt.panel(TRAINING, "Maximum epochs per training run.", min=1)] = QUICK.max_epochs,
    json_file: Annotated[
        Path | None, opt.panel(OUTPUT, "Write precision, recall, F1, AUROC and average precision as JSON.", "--json")
    ] = None,
    table: Annotated[
        Path | None, opt.panel(OUTPUT, "Write a Markdown table with confidence intervals and the command that made it.")
    ] = None,
    plot: Annotated[Path | None, opt.panel(OUTPUT, "Image file (SVG, PNG) for the plot.")] = None,
    dtype: opt.DType = "float32",
    quantization: Quantized = None,
    device: opt.Device = None,
    threads: opt.Threads = None,
    quiet: opt.Quiet = False,
) -> None:
    """Measure how well evaluators identify key tokens on held-out documents.

    With the labels that the evaluator was trained on (or with --train), variants of it are trained on the same
    documents: without context, with N- or N+ only, with N- and N+ up to 3, for each transform, with and without token
    classes. "capacity" is then the variant, among those that decoding supports, that does best on validation documents.
    With other labels nothing is trained, and "capacity" is the evaluator itself. Baselines without training are always
    measured: entropy, logit delta, and "all tokens are key".

    Examples:

    - caw evaluate evaluator --model smollm2-135m --labels labels.jsonl --data-dir data --json out.json --plot out.svg
    - caw evaluate evaluator --model smollm2-135m --labels labels.jsonl --window window_1 --top-k 10,25,50,100
    - caw evaluate evaluator --model smollm2-135m --evaluator my.safetensors --labels new.jsonl --data-dir data
    """
    with user_errors():
        require("scikit-learn", "the metrics of evaluators")
        if plot is not None:
            require("matplotlib", "--plot")
        from caw.evaluator import Evaluator, shipped_for
        from caw_lab.training import ablation
        from caw_lab.training.pipeline import fitted, labelled, protect_line_ends, stored_positions, table_for

        output = Output(json_file, table, plot)
        check_paths(
            {"--model": model, "--labels": labels, "--evaluator": evaluator, "--positions": positions,
             "--prefix-file": prefix_file},
            {"--json": json_file, "--table": table, "--plot": plot},
        )  # fmt: skip
        texts = labelled(LabelFile(labels, data_dir, statement))
        name = evaluator or shipped_for(model)
        known = Evaluator.load(name) if name else None
        data = known.provenance.get("data", {}) if known else {}
        training = data.get("labels_sha256") == digest(texts) if train is None and known else train is not False
        if known is None and not training:
            raise ValueError(f"--no-train requires an evaluator, found none for {model!r}; give --evaluator")
        line_ends = bool(data.get("line_ends")) if line_ends is None else line_ends
        specs = ablation.variants(
            cast(list[Transform], _transforms(transforms)), _window(window), line_ends, _top_ks(top_k)
        )
        prefix = read_text(prefix_file, translate=True) if prefix_file else ""
        device = prepare_place(model, device, threads, dtype, quantization)
        with stored_positions(
            Reading(model, template, prefix, positions, device, dtype, quantization), texts
        ) as stored:
            if line_ends:
                stored = protect_line_ends(stored, model)
            known = known and fitted(known, model, stored)
            settings = replace(QUICK, max_epochs=max_epochs)
            seen = {*data.get("datasets", ())} & {f"{t.dataset}/{t.split}" for t in texts}
            parts = ablation.Parts.of(stored, unseen=not training and not seen)
            about = ablation.about_run(
                stored, parts, seeds if training else 0, settings, shlex.join(["caw", *sys.argv[1:]]), line_ends
            )
            if training:
                classes, write = table_for(model, stored, line_ends), partial(output.write, about=about, last=False)
                results = _ablation(stored, specs, seeds, settings, classes, write)
                if evaluator:
                    results = {"given": ablation.measure_evaluator(stored, known, parts), **results}  # type: ignore[arg-type]
            else:
                assert known is not None
                results = {"capacity": ablation.measure_evaluator(stored, known, parts)}
                results |= ablation.untrained(stored, parts)
        output.write(results, about, last=True)
        _show(results)
        output.say()


def _ablation(
    stored: Positions,
    specs: Mapping[str, Any],
    seeds: int,
    settings: TrainSettings,
    table: torch.Tensor,
    write: Callable[[Mapping[str, ablation.Measured]], None],
) -> dict[str, ablation.Measured]:
    from caw_lab.training import ablation

    results: dict[str, ablation.Measured] = {}
    untrained = ablation.untrained(stored, ablation.Parts.of(stored))
    with Bar(len(specs) * seeds, "training") as bar:

        def trained(name: str) -> None:
            bar.begin(f"training {name.replace('_', ' ')}")
            bar()

        for name, measured in ablation.ablate(stored, specs, seeds, settings, table, trained):
            results[name] = measured
            with contextlib.suppress(ValueError):  # no variant yet that decoding can use
                write({"capacity": results[ablation.best_variant(results)], **results, **untrained})
    return {"capacity": results[ablation.best_variant(results)], **results, **untrained}


def _transforms(given: str) -> list[str]:
    names = given.split(",")
    for name in names:
        if name not in TRANSFORMS:
            raise ValueError(f"--transforms must be of {', '.join(TRANSFORMS)}, got {name!r}; choose from these")
    return names


def _top_ks(given: str) -> list[int]:
    try:
        return [int(part) for part in given.split(",")]
    except ValueError:
        raise ValueError(f"--top-k must be integers in [1, {RECORD_SIZE}], got {given!r}; use 10,25,50,100") from None


def _window(name: str | None) -> str | None:
    if name is not None and name not in WINDOWS:
        raise ValueError(f"--window must be one of {', '.join(WINDOWS)}, got {name!r}; choose one")
    return name


def _show(results: Mapping[str, ablation.Measured]) -> None:
    from rich.console import Console
    from rich.table import Table

    from caw_lab.training import ablation

    table = Table("held-out documents", *(name.replace("_", " ") for name in ablation.FIGURES))
    for name, measured in results.items():
        table.add_row(name.replace("_", " "), *(ablation.cell(measured, figure) for figure in ablation.FIGURES))
    Console().print(table)
