"""`caw evaluate evaluator`: on the labels of training, and on others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli import running
from lab.sums import write_sums
from tiny import save_tiny

from caw.evaluator import Evaluator, FeatureSpec
from caw_lab.cli.evaluate_evaluator_command import FIGURES
from caw_lab.training.pipeline import train_evaluator
from caw_lab.training.positions import Positions
from caw_lab.training.settings import LabelFile, Reading, TrainSettings

pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """(model folder, data folder, evaluator) of 40 sums whose numbers are key; labels.jsonl and other.jsonl."""
    folder = tmp_path_factory.mktemp("evaluate")
    model = str(save_tiny(folder / "tiny"))
    labels = write_sums(folder)
    write_sums(folder, "other")
    evaluator = folder / "tiny.safetensors"
    spec, settings = FeatureSpec(0, 0), TrainSettings(hidden=8, max_epochs=2)
    reading = Reading(model, folder=folder / "stored")
    train_evaluator(reading, LabelFile(labels, folder), evaluator, spec, settings, progress=False)
    return model, folder, evaluator


def run(setup: tuple[str, Path, Path], labels: str, *arguments: str) -> Any:
    model, folder, _ = setup
    given = ["evaluate", "evaluator", "--model", model, "--labels", str(folder / labels), "--data-dir", str(folder)]
    return running.run(*given, *arguments)


def test_an_evaluator_beside_what_needs_no_training(setup: tuple[str, Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run(setup, "other.jsonl", "--evaluator", str(setup[2]), "--json", str(out))
    assert done.exit_code == 0, done.stderr
    found = json.loads(out.read_text())
    assert list(found["evaluators"]) == ["capacity", "entropy", "logit_delta", "all_tokens_key"]
    assert all({*FIGURES} < set(row) for row in found["evaluators"].values())
    assert found["auroc_95"][0] <= found["evaluators"]["capacity"]["auroc"] <= found["auroc_95"][1]
    assert "logit delta" in done.stdout and "capacity" in done.stdout


def test_a_universal_evaluator_is_measured_on_documents_that_it_has_not_seen(
    setup: tuple[str, Path, Path], tmp_path: Path
) -> None:
    """It named no data sets, so two thirds of its training documents counted as held out."""
    network, out = Evaluator.load("universal"), tmp_path / "out.json"
    told = []
    for datasets in (["toy/train"], []):
        network.provenance["data"] = {"datasets": datasets, "line_ends": True}
        network.save(tmp_path / "any.safetensors")
        done = run(
            setup, "toy.jsonl", "--evaluator", str(tmp_path / "any.safetensors"), "--positions",
            str(setup[1] / "stored"), "--json", str(out),
        )  # fmt: skip
        assert done.exit_code == 0, done.stderr
        told.append(json.loads(out.read_text()))
    stored = Positions.open(setup[1] / "stored")
    held_out = int((stored.part == "test").sum())
    others = int((np.asarray(stored.arrays["document"]) % 3 != 0).sum())
    assert [each["held_out_tokens"] for each in told] == [held_out, others] and held_out < others
    assert told[0]["line_ends"]


def test_an_evaluator_is_measured_by_the_labels_it_was_trained_on(
    setup: tuple[str, Path, Path], tmp_path: Path
) -> None:
    """In the task's words, with examples before, line ends key: the figures are those that training stated."""
    model, folder, _ = setup
    shots, weights = tmp_path / "shots.txt", tmp_path / "own.safetensors"
    shots.write_text("1 plus 1?\nso 1 is small\n= 2\n\n" * 2)
    own = ("--prefix-file", str(shots), "--statement", "= {answer}", "--template", "{question}\n")
    stored = ("--positions", str(tmp_path / "stored"))
    trained = running.run(
        "train-evaluator", "--model", model, "--labels", str(folder / "toy.jsonl"), "--data-dir", str(folder),
        "--output", str(weights), "--max-epochs", "2", "--hidden", "8", "--transform", "log", *own, *stored,
    )  # fmt: skip
    assert trained.exit_code == 0, trained.stderr
    written = json.loads(weights.with_suffix(".json").read_text())
    assert written["data"]["line_ends"] and written["prompt"]["statement"] == "= {answer}"
    assert written["prompt"]["prefix_sha256"] and written["prompt"]["template"] == "{question}\n"
    given = ("--evaluator", str(weights), "--json", str(tmp_path / "out.json"))
    done = run(setup, "toy.jsonl", *given, *own, *stored)
    assert done.exit_code == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())["evaluators"]["capacity"]
    stated = written["metrics"]["evaluators"]["capacity"]
    assert found["auroc"] == stated["auroc"] and found["average_precision"] == stated["average_precision"]
    plain = run(setup, "toy.jsonl", *given, "--no-line-ends", *own, *stored)
    assert plain.exit_code == 0, plain.stderr
    assert json.loads((tmp_path / "out.json").read_text())["evaluators"]["capacity"]["auroc"] != stated["auroc"]
    refused = run(setup, "toy.jsonl", *given, *stored)
    assert refused.exit_code == 2 and "were made with" in refused.stderr
