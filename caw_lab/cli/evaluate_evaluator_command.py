"""`caw evaluate evaluator`: how well an evaluator identifies key tokens."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from caw.cli import options as opt
from caw.cli.command import command, options_of
from caw.cli.errors import complain, user_errors
from caw.cli.place import Place
from caw.io.files import check_paths, write_text
from caw.io.inputs import read_text
from caw.requirements import require
from caw_lab.training.labels import TEMPLATE, digest
from caw_lab.training.settings import LabelFile, Reading

OUTPUT = "Output"
FIGURES = ("precision", "recall", "f1", "auroc", "average_precision")


@command(place=options_of(Place, dtype="float32"))
def evaluate_evaluator_command(
    *,
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
    json_file: Annotated[
        Path | None, opt.panel(OUTPUT, "Write precision, recall, F1, AUROC and average precision as JSON.", "--json")
    ] = None,
    place: dict[str, Any],
    quiet: opt.Quiet = False,
) -> None:
    """Measure how well evaluators identify key tokens on held-out documents.

    "capacity" is the evaluator; baselines without training are entropy, logit delta, and "all tokens are key". Of a
    data set that the evaluator was trained on, the documents are those that its training held out; of another one,
    every third document chooses thresholds and the others are measured.

    Examples:

    - caw evaluate evaluator --model smollm2-135m --labels labels.jsonl --data-dir data --json out.json
    - caw evaluate evaluator --model smollm2-135m --evaluator my.safetensors --labels new.jsonl --data-dir data
    """
    with user_errors():
        require("scikit-learn", "the metrics of evaluators")
        import numpy as np

        from caw.evaluator import Evaluator, shipped_for
        from caw_lab.training.metrics import compare, document_interval
        from caw_lab.training.pipeline import fitted, labelled, protect_line_ends, stored_positions
        from caw_lab.training.train import predict

        check_paths(
            {"--model": model, "--labels": labels, "--evaluator": evaluator, "--positions": positions,
             "--prefix-file": prefix_file},
            {"--json": json_file},
        )  # fmt: skip
        texts = labelled(LabelFile(labels, data_dir, statement))
        name = evaluator or shipped_for(model)
        if name is None:
            raise ValueError(f"an evaluator is required, found none for {model!r}; give --evaluator")
        network = Evaluator.load(name)
        data = network.provenance.get("data", {})
        line_ends = bool(data.get("line_ends")) if line_ends is None else line_ends
        prefix = read_text(prefix_file, translate=True) if prefix_file else ""
        on = Place(**place)
        with stored_positions(
            Reading(model, template, prefix, positions, on.prepare(model), on.dtype, on.quantization), texts
        ) as stored:
            if line_ends:
                stored = protect_line_ends(stored, model)
            network = fitted(network, model, stored)
            trained_on = data.get("labels_sha256") == digest(texts) or (
                {*data.get("datasets", ())} & {f"{t.dataset}/{t.split}" for t in texts}
            )
            thirds = np.where(np.asarray(stored.arrays["document"]) % 3 == 0, "validation", "test")
            part = stored.part if trained_on else thirds
            features = stored.features(network.spec, np.arange(len(stored)), network.token_class)
            scores = {"capacity": predict(network, features)}
            found = compare(stored, scores, part)
            about = {
                "model": stored.meta["model"], "evaluator": Path(name).name, "line_ends": line_ends,
                "held_out_tokens": found["tokens"], "key": found["base_rate"],
                "auroc_95": document_interval(stored, scores["capacity"], np.flatnonzero(part == "test")),
                "command": shlex.join(["caw", *sys.argv[1:]]),
            }  # fmt: skip
        if json_file:
            write_text(json_file, json.dumps({"evaluators": found["evaluators"], **about}, indent=1) + "\n")
            complain(f"wrote {json_file}")
        _show(found["evaluators"])


def _show(evaluators: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("held-out documents", *(name.replace("_", " ") for name in FIGURES))
    for name, row in evaluators.items():
        table.add_row(name.replace("_", " "), *(f"{row[f]:.3f}" for f in FIGURES))
    Console().print(table)
