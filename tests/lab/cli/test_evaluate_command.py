"""`caw evaluate evaluator`: the ablation on known labels, evaluation alone on others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import save_tiny
from typer.testing import CliRunner

from caw.cli import app
from caw.evaluator import Evaluator, FeatureSpec
from caw_lab.training.ablation import FIGURES
from caw_lab.training.pipeline import train_evaluator
from caw_lab.training.positions import Positions
from caw_lab.training.settings import LabelFile, Reading, TrainSettings


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """(model folder, data folder, evaluator) of 40 sums whose numbers are key; labels.jsonl and other.jsonl."""
    folder = tmp_path_factory.mktemp("evaluate")
    model = str(save_tiny(folder / "tiny"))
    for name in ("toy", "other"):
        (folder / name).mkdir()
        rows, labels = [], []
        for i in range(40):
            answer = f"so {i} is small\n#### {2 * i + 1}"
            rows.append({"question": f"{i} plus {i + 1}?", "answer": answer})
            last = answer.index("####") + 5
            labels.append(
                {"dataset": name, "split": "train", "index": i, "spans": [[3, 3 + len(str(i))], [last, len(answer)]]}
            )
        for path, lines in ((folder / name / "train.jsonl", rows), (folder / f"{name}.jsonl", labels)):
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluator = folder / "tiny.safetensors"
    spec, settings = FeatureSpec(0, 0), TrainSettings(hidden=8, max_epochs=2)
    train_evaluator(
        Reading(model, folder=folder / "stored"),
        LabelFile(folder / "toy.jsonl", folder),
        evaluator,
        spec,
        settings,
        progress=False,
    )
    return model, folder, evaluator


def run(setup: tuple[str, Path, Path], labels: str, *arguments: str) -> Any:
    model, folder, _ = setup
    given = ["evaluate", "evaluator", "--model", model, "--labels", str(folder / labels), "--data-dir", str(folder)]
    return CliRunner().invoke(app, [*given, *arguments], env={"COLUMNS": "200", "NO_COLOR": "1", "CAW_TRACEBACK": ""})


def test_ablation_on_known_labels(setup: tuple[str, Path, Path], tmp_path: Path) -> None:
    out, table, plot = (tmp_path / name for name in ("out.json", "out.md", "out.svg"))
    done = run(
        setup, "toy.jsonl", "--evaluator", str(setup[2]), "--positions", str(setup[1] / "stored"), "--seeds", "2",
        "--transforms", "log", "--window", "no_context", "--max-epochs", "2",
        "--json", str(out), "--table", str(table), "--plot", str(plot),
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    found = json.loads(out.read_text())
    assert list(found) == ["evaluators", "half_widths"]
    names = ["no_context_log", "no_context_log_classes", "entropy", "logit_delta", "all_tokens_key"]
    assert set(found["evaluators"]) == {"capacity", "given", *names}
    assert all(set(figures) == set(FIGURES) for figures in found["evaluators"].values())
    assert found["evaluators"]["capacity"] in [found["evaluators"][n] for n in names[:2]]
    assert "±" in table.read_text() and "2 seeds a variant" in table.read_text() and "capacity" in done.stdout
    assert set(found["half_widths"]) == {"capacity", *names[:2]}
    assert plot.read_text().startswith("<?xml") and "no context log classes" in plot.read_text()


def test_labels_that_training_never_saw_are_only_evaluated(setup: tuple[str, Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run(setup, "other.jsonl", "--evaluator", str(setup[2]), "--json", str(out))
    assert done.exit_code == 0, done.stderr
    found = json.loads(out.read_text())["evaluators"]
    assert list(found) == ["capacity", "entropy", "logit_delta", "all_tokens_key"]


def test_a_universal_evaluator_is_measured_on_documents_that_it_has_not_seen(
    setup: tuple[str, Path, Path], tmp_path: Path
) -> None:
    """It named no data sets, so two thirds of its training documents counted as held out."""
    network, table = Evaluator.load("universal"), tmp_path / "out.md"
    told = []
    for datasets in (["toy/train"], []):
        network.provenance["data"] = {"datasets": datasets, "line_ends": True}
        network.save(tmp_path / "any.safetensors")
        done = run(
            setup, "toy.jsonl", "--evaluator", str(tmp_path / "any.safetensors"), "--positions",
            str(setup[1] / "stored"), "--table", str(table),
        )  # fmt: skip
        assert done.exit_code == 0, done.stderr
        told.append(table.read_text())
    stored = Positions.open(setup[1] / "stored")
    held_out = int((stored.part == "test").sum())
    others = int((np.asarray(stored.arrays["document"]) % 3 != 0).sum())
    assert f" {held_out} held out" in told[0] and f" {others} held out" in told[1] and held_out < others
    assert "line ends among them" in told[0]


def test_an_evaluator_is_measured_by_the_labels_it_was_trained_on(
    setup: tuple[str, Path, Path], tmp_path: Path
) -> None:
    """In the task's words, with examples before, line ends key: the figures are those that training stated."""
    model, folder, _ = setup
    shots, weights = tmp_path / "shots.txt", tmp_path / "own.safetensors"
    shots.write_text("1 plus 1?\nso 1 is small\n= 2\n\n" * 2)
    own = ("--prefix-file", str(shots), "--statement", "= {answer}", "--template", "{question}\n")
    stored = ("--positions", str(tmp_path / "stored"))
    trained = CliRunner().invoke(app, [
        "train-evaluator", "--model", model, "--labels", str(folder / "toy.jsonl"), "--data-dir", str(folder),
        "--output", str(weights), "--max-epochs", "2", "--hidden", "8", "--transform", "log", *own, *stored,
    ])  # fmt: skip
    assert trained.exit_code == 0, trained.stderr
    written = json.loads(weights.with_suffix(".json").read_text())
    assert written["data"]["line_ends"] and written["prompt"]["statement"] == "= {answer}"
    assert written["prompt"]["prefix_sha256"] and written["prompt"]["template"] == "{question}\n"
    given = ("--evaluator", str(weights), "--json", str(tmp_path / "out.json"))
    done = run(setup, "toy.jsonl", *given, "--no-train", *own, *stored)
    assert done.exit_code == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())["evaluators"]["capacity"]
    stated = written["metrics"]["evaluators"]["capacity"]
    assert found["auroc"] == stated["auroc"] and found["average_precision"] == stated["average_precision"]
    plain = run(setup, "toy.jsonl", *given, "--no-train", "--no-line-ends", *own, *stored)
    assert plain.exit_code == 0, plain.stderr
    assert json.loads((tmp_path / "out.json").read_text())["evaluators"]["capacity"]["auroc"] != stated["auroc"]
    refused = run(setup, "toy.jsonl", *given, "--no-train", *stored)
    assert refused.exit_code == 2 and "were made with" in refused.stderr
    table = tmp_path / "out.md"
    variants = run(
        setup, "toy.jsonl", *given, "--seeds", "1", "--transforms", "log", "--window", "no_context", "--max-epochs",
        "1", "--table", str(table), *own, *stored,
    )  # fmt: skip
    assert variants.exit_code == 0, variants.stderr
    assert "line ends among them" in table.read_text(), "the evaluator knows these labels, so variants are trained"


def test_bad_input_is_named(setup: tuple[str, Path, Path], tmp_path: Path) -> None:
    for arguments, message in (
        (("--transforms", "square"), "--transforms must be of"),
        (("--window", "window_9"), "--window must be one of"),
        (("--top-k", "10,many"), "--top-k must be integers"),
        (("--json", str(tmp_path / "none" / "out.json")), "folder must exist"),
        (("--no-train",), "requires an evaluator, found"),
        (("--evaluator", "nobody"), "evaluator must be"),
    ):
        done = run(setup, "toy.jsonl", *arguments)
        assert done.exit_code == 2 and message in done.stderr, (arguments, done.stderr)
    assert run(setup, "none.jsonl").exit_code == 2
