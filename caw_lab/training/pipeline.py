"""`caw train-evaluator`: from a label file and a model's name to saved evaluator weights with provenance."""

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from caw.evaluator.features import FeatureSpec
from caw.evaluator.network import Evaluator
from caw.evaluator.token_classes import CLASSES, LINE_BREAK, check_tokenizer, class_table
from caw.io.files import write_text
from caw.io.progress import doing, silent
from caw.io.token_texts import id_count
from caw.io.vocabulary import Vocabulary
from caw.models import load_model, load_tokenizer
from caw.op_indices import TRANSFORMS
from caw.record import RECORD_SIZE
from caw.requirements import require
from caw_lab.training.labels import LabelledText, digest, read_labels, restate
from caw_lab.training.positions import SPLIT, Positions
from caw_lab.training.recording import record_positions
from caw_lab.training.settings import LabelFile, Reading, TrainSettings
from caw_lab.training.train import choose_transform, train

LICENCES = {"gsm8k": "texts: MIT, (c) 2021 OpenAI, grade-school-math (none are stored here)"}


def train_evaluator(
    reading: Reading,
    labels: LabelFile,
    output_path: str | Path,
    spec: FeatureSpec | Sequence[FeatureSpec] | None = None,
    settings: TrainSettings | None = None,
    *,
    line_ends: bool = True,
    command: str = "",
    progress: bool = True,
) -> dict[str, Any]:
    """Train an evaluator for a model, and write OUTPUT.safetensors with OUTPUT.json next to it.

    Args:
        output_path: ends in .safetensors; its folder must exist.
        spec: features, or several that differ in their transform, of which `choose_transform` keeps the best on
            validation; None = `default_specs()`.
        line_ends: label tokens that end a line as key too; see `protect_line_ends`.
        command: command to record with the weights.

    Returns what the JSON holds. Raises FileNotFoundError or ValueError in one sentence before the model runs where
    that is possible.
    """
    require("scikit-learn", "training evaluators")
    output = _checked_output(output_path)
    texts = labelled(labels)
    specs = _specs_given(spec, line_ends)
    with stored_positions(reading, texts, progress=progress) as positions:
        if line_ends:
            positions = protect_line_ends(positions, reading.model)
        table = table_for(reading.model, positions, specs[0].line_ends) if specs[0].classes else None
        if len(specs) > 1:
            evaluator, measured = choose_transform(positions, specs, settings, table=table)
        else:
            with doing("training the network", announced=True):
                evaluator, measured = train(positions, specs[0], settings, table)
        quantization = positions.meta.get("quantization")
        evaluator.provenance = {
            "model": positions.meta["model"],
            "dtype": positions.meta["dtype"],
            **({"quantization": quantization} if quantization else {}),
            "prompt": {
                "template": reading.template,
                "prefix_sha256": positions.meta["prefix_sha256"],
                "statement": labels.statement,
            },
            "data": {**_data(texts, positions, Path(labels.path)), "line_ends": line_ends},
            "features": evaluator.spec.to_dict(),
            "parameters": sum(p.numel() for p in evaluator.parameters()),
            "metrics": measured,
            "command": command,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }
    evaluator.vocabulary = Vocabulary.of(load_tokenizer(reading.model))
    evaluator.save(output)
    write_text(output.with_suffix(".json"), json.dumps(evaluator.provenance, indent=1, ensure_ascii=False) + "\n")
    return evaluator.provenance


def _specs_given(spec: FeatureSpec | Sequence[FeatureSpec] | None, line_ends: bool) -> list[FeatureSpec]:
    """Return the specs to choose from; `default_specs()` if none is given. ValueError if their classes differ."""
    specs = default_specs(line_ends=line_ends) if spec is None else [spec] if isinstance(spec, FeatureSpec) else spec
    if len({(s.classes, s.line_ends) for s in specs}) > 1:
        raise ValueError("specs must differ in their transform only, got several kinds of token classes; use one kind")
    return list(specs)


def labelled(labels: LabelFile) -> list[LabelledText]:
    texts = read_labels(labels.path, labels.data_dir)
    return texts if labels.statement is None else [restate(text, labels.statement) for text in texts]


def default_specs(
    previous: int = 1, next: int = 1, classes: int = len(CLASSES), line_ends: bool = True, k: int = RECORD_SIZE
) -> list[FeatureSpec]:
    """Return one spec for each transform, with token classes unless `classes` is 0."""
    ends = line_ends and bool(classes)
    return [FeatureSpec(previous, next, k, transform=name, classes=classes, line_ends=ends) for name in TRANSFORMS]


def protect_line_ends(positions: Positions, model_name: str | Path) -> Positions:
    """Return the positions with every token that ends a line labelled key.

    Key segments are parts of a text, with line breaks between them: labelled by overlap a line break would count as
    unimportant, although where a line or a text ends is as much the model's decision as any word. Marked as strongly as
    filler, lines run on into needless clauses and answers run out of tokens.
    """
    table = table_for(model_name, positions, line_ends=True).numpy()
    return positions.with_key(table[np.asarray(positions.arrays["token"])] == LINE_BREAK)


def table_for(model_name: str | Path, positions: Positions, line_ends: bool = False) -> torch.Tensor:
    """Return token classes of a model's tokenizer, long enough for every id that the model produced."""
    tokenizer = load_tokenizer(model_name)
    seen = max(int(positions.arrays[name].max()) for name in ("ids", "token"))
    return class_table(tokenizer, max(id_count(tokenizer), seen + 1), line_ends)


def fitted(evaluator: Evaluator, model_name: str | Path, positions: Positions) -> Evaluator:
    """Return the evaluator for this model, with token classes of the model's tokenizer if it differs."""
    if not evaluator.spec.classes:
        return evaluator
    tokenizer = load_tokenizer(model_name)
    if evaluator.universal or evaluator.token_class is None:
        return evaluator.serving(tokenizer)
    try:
        check_tokenizer(evaluator.token_class.cpu(), tokenizer, evaluator.spec.line_ends)
    except ValueError:
        return evaluator.for_tokenizer(tokenizer, len(table_for(model_name, positions)))
    return evaluator


@contextlib.contextmanager
def stored_positions(reading: Reading, texts: Sequence[LabelledText], *, progress: bool = True) -> Iterator[Positions]:
    """Return stored positions of these texts: those in the reading's folder if it is complete, otherwise from running
    the model.

    Without a folder they are deleted when the block ends. Raises ValueError if the folder was made from another model,
    dtype, label file or prompt.
    """
    if reading.folder is not None:
        yield _obtain(reading, texts, Path(reading.folder), progress)
        return
    with tempfile.TemporaryDirectory(prefix="caw-positions-") as folder:
        yield _obtain(reading, texts, Path(folder), progress)


def _obtain(reading: Reading, texts: Sequence[LabelledText], folder: Path, progress: bool) -> Positions:
    if not (folder / "meta.json").is_file():
        with silent(not progress), doing(f"loading {reading.model}", announced=True):
            model, tokenizer = load_model(
                reading.model, device=reading.device, dtype=reading.dtype, quantization=reading.quantization
            )
        return record_positions(
            model, tokenizer, texts, folder, template=reading.template, prefix=reading.prefix,
            quantization=reading.quantization, progress=progress,
        )  # fmt: skip
    positions = Positions.open(folder)
    wanted = {
        "model": str(reading.model),
        "dtype": reading.dtype,
        "quantization": reading.quantization,
        "template": reading.template,
        "labels_sha256": digest(texts),
        "prefix_sha256": digest(reading.prefix) if reading.prefix else None,
    }
    for name, value in wanted.items():
        if positions.meta.get(name) != value:
            raise ValueError(
                f"stored positions in {folder} were made with {name} {positions.meta.get(name)!r}, requested is "
                f"{value!r}; use another folder or remove this one"
            )
    return positions


def _checked_output(path: str | Path) -> Path:
    output = Path(path)
    if output.suffix != ".safetensors":
        raise ValueError(f"output must end in .safetensors, got {str(path)!r}; add the extension")
    if not output.parent.is_dir():
        raise FileNotFoundError(f"the output folder {output.parent} must exist; create it first")
    return output


def _data(texts: Sequence[LabelledText], positions: Positions, labels: Path) -> dict[str, Any]:
    part, document = positions.part, np.asarray(positions.arrays["document"])
    split = {
        name: {"documents": len(np.unique(document[part == name])), "tokens": int((part == name).sum())}
        for name in SPLIT
    }
    names = sorted({t.dataset for t in texts})
    return {
        "labels": labels.name,
        "labels_sha256": digest(texts),
        "datasets": sorted({f"{t.dataset}/{t.split}" for t in texts}),
        "documents": len(texts),
        "spans": sum(len(t.spans) for t in texts),
        "tokens": len(positions),
        "key_tokens": int(positions.key.sum()),
        "agreeing_tokens": int(positions.agree.sum()),
        "licence": [LICENCES.get(name, f"{name}: not known to this library") for name in names],
        "split": {"rule": "whole documents, by the sha256 of dataset/split/index", **split},
    }
