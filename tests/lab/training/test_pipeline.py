"""From a label file to weights on disk, with a tiny model."""

import json
from dataclasses import replace

import numpy as np
import pytest
from lab.sums import write_sums
from tiny import save_tiny

from caw.evaluator import Evaluator, FeatureSpec
from caw.io.token_texts import token_texts
from caw.models import load_tokenizer
from caw_lab.training.labels import read_labels
from caw_lab.training.metrics import compare
from caw_lab.training.pipeline import default_specs, protect_line_ends, stored_positions, train_evaluator
from caw_lab.training.positions import Positions
from caw_lab.training.settings import LabelFile, Reading, TrainSettings
from caw_lab.training.train import predict

QUICK = TrainSettings(hidden=8, max_epochs=2)


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    """(model folder, label file, data folder) of 40 sums whose numbers are key."""
    folder = tmp_path_factory.mktemp("pipeline")
    model = save_tiny(folder / "tiny")
    return model, write_sums(folder), folder


def test_train_evaluator(setup, tmp_path):
    model, labels, data = setup
    output = tmp_path / "tiny.safetensors"
    stored = tmp_path / "positions"
    written = train_evaluator(
        Reading(model, folder=stored), LabelFile(labels, data), output, settings=QUICK, command="made by a test",
        progress=False,
    )  # fmt: skip
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
    positions = protect_line_ends(Positions.open(stored), model)
    every = positions.features(evaluator.spec, np.arange(len(positions)), evaluator.token_class)
    measured = compare(positions, {"capacity": predict(evaluator, every)})
    assert measured["evaluators"] == written["metrics"]["evaluators"]


def test_line_ends_are_labelled_key(setup, tmp_path):
    """Two spans a document, and one line break between them that no span holds."""
    model, labels, data = setup
    with stored_positions(Reading(model, folder=tmp_path), read_labels(labels, data), progress=False) as positions:
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
        train_evaluator(Reading(model), LabelFile(labels, data), tmp_path / "e.safetensors", specs, QUICK)


STATEMENT = "The answer is {answer}."


def test_a_statement_takes_the_place_of_the_final_line(setup, tmp_path):
    model, labels, data = setup
    written = train_evaluator(
        Reading(model, folder=tmp_path / "p"), LabelFile(labels, data, STATEMENT), tmp_path / "e.safetensors",
        default_specs()[:1], QUICK, progress=False,
    )  # fmt: skip
    assert written["prompt"]["statement"] == STATEMENT
    positions, tokenizer = Positions.open(tmp_path / "p"), load_tokenizer(model)
    first = positions.arrays["document"] == 0
    text = tokenizer.decode(positions.arrays["token"][first].tolist())
    assert text.endswith("\nThe answer is 1.") and "####" not in text
    end = tokenizer.decode(positions.arrays["token"][first & positions.key].tolist())
    assert end.replace(" ", "").endswith("Theansweris1.")
    with pytest.raises(ValueError, match="were made with labels_sha256"):
        train_evaluator(Reading(model, folder=tmp_path / "p"), LabelFile(labels, data), tmp_path / "e.safetensors")


def test_stored_positions_are_used_again(setup, tmp_path, monkeypatch):
    model, labels, data = setup
    texts = read_labels(labels, data)
    reading = Reading(model, folder=tmp_path)
    with stored_positions(reading, texts, progress=False):
        pass
    monkeypatch.setattr("caw_lab.training.pipeline.load_model", None)  # a second run must not need the model
    with stored_positions(reading, texts, progress=False) as again:
        assert again.meta["model"] == str(model)
    spec = FeatureSpec(previous=0, next=0, k=3, transform="raw")
    written = train_evaluator(reading, LabelFile(labels, data), tmp_path / "e.safetensors", spec, QUICK, progress=False)
    assert written["features"] == spec.to_dict() and "choice" not in written["metrics"]
    for other, given in (
        (replace(reading, model="another"), texts),
        (reading, texts[:-1]),
        (replace(reading, template="{question}"), texts),
        (replace(reading, prefix="x"), texts),
        (replace(reading, dtype="bfloat16"), texts),
        (replace(reading, quantization="int8"), texts),
    ):
        with pytest.raises(ValueError, match="were made with"), stored_positions(other, given):
            pass


def test_without_a_folder_nothing_is_left(setup, tmp_path, monkeypatch):
    model, labels, data = setup
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with stored_positions(Reading(model), read_labels(labels, data)[:3], progress=False) as positions:
        assert len(positions) > 0 and any(tmp_path.iterdir())
    assert not any(tmp_path.iterdir())
