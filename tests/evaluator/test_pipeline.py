"""From a label file to weights on disk, with a tiny model."""

from __future__ import annotations

import json

import pytest
from tiny import save_tiny

from caw.evaluator import Evaluator, FeatureSpec
from caw.evaluator.labels import read_labels
from caw.evaluator.pipeline import evaluate_evaluator, obtain_positions, train_evaluator
from caw.evaluator.positions import Positions
from caw.evaluator.train import TrainSettings

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
    measured = evaluate_evaluator(evaluator, Positions.open(stored))
    assert measured["evaluators"] == written["metrics"]["evaluators"]


def test_stored_positions_are_used_again(setup, tmp_path, monkeypatch):
    model, labels, data = setup
    texts = read_labels(labels, data)
    obtain_positions(model, texts, tmp_path, progress=False)
    monkeypatch.setattr("caw.evaluator.pipeline.load_model", None)  # a second run must not need the model
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
    monkeypatch.setattr("caw.evaluator.pipeline.load_model", None)
    with pytest.raises(ValueError, match=r"must end in \.safetensors"):
        train_evaluator(model, labels, data, tmp_path / "weights.bin")
    with pytest.raises(FileNotFoundError, match="make it first"):
        train_evaluator(model, labels, data, tmp_path / "none" / "e.safetensors")
    with pytest.raises(FileNotFoundError, match="expected a label file"):
        train_evaluator(model, data / "none.jsonl", data, tmp_path / "e.safetensors")
