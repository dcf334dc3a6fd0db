"""From a label file to weights on disk, with a tiny model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tiny import save_tiny

from caw.evaluator import Evaluator, FeatureSpec
from caw.evaluator.token_classes import class_table
from caw.fitting.labels import read_labels
from caw.fitting.pipeline import (
    default_specs,
    evaluate_evaluator,
    obtain_positions,
    protect_line_ends,
    train_evaluator,
)
from caw.fitting.positions import Positions
from caw.fitting.train import TrainSettings
from caw.io.token_texts import token_texts
from caw.models import load_tokenizer

QUICK = TrainSettings(hidden=8, max_epochs=2)


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    """(model folder, label file, data folder) of 40 sums whose numbers are key."""
    folder = tmp_path_factory.mktemp("pipeline")
    model = save_tiny(folder / "tiny")
    (folder / "toy").mkdir()
    rows, labels = [], []
    for i in range(40):
        answer = f"so {i} and <<1+1=2>>{i + 1} is small\n#### {2 * i + 1}"
        plain = answer.replace("<<1+1=2>>", "")
        first, last = plain.index(str(i)), plain.index("####") + 5
        rows.append({"question": f"{i} plus {i + 1}?", "answer": answer})
        spans = [[first, first + len(str(i))], [last, len(plain)]]
        labels.append({"dataset": "toy", "split": "train", "index": i, "spans": spans})
    for name, lines in (("toy/train.jsonl", rows), ("labels.jsonl", labels)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return model, folder / "labels.jsonl", folder


def test_train_evaluator(setup, tmp_path):
    model, labels, data = setup
    output = tmp_path / "tiny.safetensors"
    stored = tmp_path / "positions"
    written = train_evaluator(
        model, labels, data, output, settings=QUICK, positions_folder=stored, command="made by a test", progress=False
    )
    assert json.loads(output.with_suffix(".json").read_text()) == json.loads(json.dumps(written))
    evaluator = Evaluator.load(output)
    assert evaluator.provenance == json.loads(json.dumps(written))
    assert evaluator.provenance["model"] == str(model) and written["command"] == "made by a test"
    assert (written["data"]["documents"], written["data"]["spans"]) == (40, 80)
    assert written["data"]["tokens"] == sum(
        written["data"]["split"][p]["tokens"] for p in ("train", "validation", "test")
    )
    assert set(written["metrics"]["choice"]) == {"raw", "log", "gap"}
    assert written["data"]["line_ends"] and evaluator.spec.line_ends
    measured = evaluate_evaluator(evaluator, protect_line_ends(Positions.open(stored), model))
    assert measured["evaluators"] == written["metrics"]["evaluators"]


def test_line_ends_are_labelled_key(setup, tmp_path):
    """Two spans a document, and one line break between them that no span holds."""
    model, labels, data = setup
    positions = obtain_positions(model, read_labels(labels, data), tmp_path, progress=False)
    protected = protect_line_ends(positions, model)
    texts = token_texts(load_tokenizer(model), positions.arrays["token"].tolist())
    breaks = np.array(["\n" in text for text in texts])
    assert breaks.sum() == 40 and not positions.key[breaks].any()
    assert np.array_equal(protected.key, positions.key | breaks)
    assert protected.meta == {**positions.meta, "key_tokens": int(protected.key.sum())}
    assert np.array_equal(Positions.open(tmp_path).key, positions.key)


def test_specs_of_one_kind_only(setup, tmp_path):
    model, labels, data = setup
    specs = [default_specs()[0], default_specs(line_ends=False)[1]]
    with pytest.raises(ValueError, match="must differ in their transform only"):
        train_evaluator(model, labels, data, tmp_path / "e.safetensors", specs, QUICK)


STATEMENT = "The answer is {answer}."


def test_a_statement_takes_the_place_of_the_final_line(setup, tmp_path):
    model, labels, data = setup
    written = train_evaluator(
        model, labels, data, tmp_path / "e.safetensors", default_specs()[:1], QUICK, statement=STATEMENT,
        positions_folder=tmp_path / "p", progress=False,
    )  # fmt: skip
    assert written["prompt"]["statement"] == STATEMENT
    positions, tokenizer = Positions.open(tmp_path / "p"), load_tokenizer(model)
    first = positions.arrays["document"] == 0
    text = tokenizer.decode(positions.arrays["token"][first].tolist())
    assert text.endswith("\nThe answer is 1.") and "####" not in text
    end = tokenizer.decode(positions.arrays["token"][first & positions.key].tolist())
    assert end.replace(" ", "").endswith("Theansweris1.")
    with pytest.raises(ValueError, match="were made with labels_sha256"):
        train_evaluator(model, labels, data, tmp_path / "e.safetensors", positions_folder=tmp_path / "p")


def test_without_line_ends_labels_and_classes_are_what_they_were(setup, tmp_path):
    model, labels, data = setup
    written = train_evaluator(
        model, labels, data, tmp_path / "e.safetensors", settings=QUICK, line_ends=False, progress=False
    )
    plain = Evaluator.load(tmp_path / "e.safetensors")
    assert not plain.spec.line_ends and not written["data"]["line_ends"]
    assert torch.equal(plain.token_class, class_table(load_tokenizer(model), len(plain.token_class)))


def test_stored_positions_are_used_again(setup, tmp_path, monkeypatch):
    model, labels, data = setup
    texts = read_labels(labels, data)
    obtain_positions(model, texts, tmp_path, progress=False)
    monkeypatch.setattr("caw.fitting.pipeline.load_model", None)  # a second run must not need the model
    again = obtain_positions(model, texts, tmp_path, progress=False)
    assert again.meta["model"] == str(model)
    spec = FeatureSpec(previous=0, next=0, k=3, transform="raw")
    written = train_evaluator(
        model, labels, data, tmp_path / "e.safetensors", spec, QUICK, positions_folder=tmp_path, progress=False
    )
    assert written["features"] == spec.to_dict() and "choice" not in written["metrics"]
    for other in (
        {"model_name": "another"},
        {"texts": texts[:-1]},
        {"template": "{question}"},
        {"prefix": "x"},
        {"dtype": "bfloat16"},
    ):
        with pytest.raises(ValueError, match="were made with"):
            obtain_positions(**{"model_name": model, "texts": texts, "folder": tmp_path, **other})


def test_output_is_checked_before_the_model_runs(setup, tmp_path, monkeypatch):
    model, labels, data = setup
    monkeypatch.setattr("caw.fitting.pipeline.load_model", None)
    with pytest.raises(ValueError, match=r"must end in \.safetensors"):
        train_evaluator(model, labels, data, tmp_path / "weights.bin")
    with pytest.raises(FileNotFoundError, match="make it first"):
        train_evaluator(model, labels, data, tmp_path / "none" / "e.safetensors")
    with pytest.raises(FileNotFoundError, match="expected a label file"):
        train_evaluator(model, data / "none.jsonl", data, tmp_path / "e.safetensors")
