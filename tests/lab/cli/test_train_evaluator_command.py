"""`caw train-evaluator`: from labels to weights, and what it refuses."""

import json
from pathlib import Path

import pytest
from cli.running import assert_refused, generate, run
from lab.sums import write_sums

from caw.detection.weights import TokenWeights

pytestmark = pytest.mark.usefixtures("environment")


def test_train_evaluator(model: str, tmp_path: Path) -> None:
    """From labels to weights that `generate` takes; every number of these sums is key."""
    weights = tmp_path / "tiny.safetensors"
    result = run(
        "train-evaluator", "--model", model, "--labels", str(write_sums(tmp_path)), "--data-dir", str(tmp_path),
        "--output", str(weights), "--hidden", "8", "--max-epochs", "2", "--transform", "gap", "--top-k", "20",
        "--positions", str(tmp_path / "seen"),
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    written = json.loads(weights.with_suffix(".json").read_text())
    assert (written["features"]["transform"], written["features"]["k"], written["model"]) == ("gap", 20, model)
    assert f"{written['metrics']['evaluators']['capacity']['auroc']:.3f}" in result.stdout
    table = tmp_path / "table.safetensors"
    result = run(
        "detection-weights", "--tokenizer", model, "--positions", str(tmp_path / "seen"), "--evaluator", str(weights),
        "--output", str(table),
    )  # fmt: skip
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert len(TokenWeights.load(table).provenance["labels_sha256"]) == 64
    result = generate(model, "--prompt", "the sky", "--policy", "capacity", "--evaluator", str(weights))
    assert result.exit_code == 0 and result.stderr.count("\n") == 1 and "policy capacity" in result.stderr


def test_bad_train_evaluator(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.jsonl").touch()
    given = {"--model": model, "--labels": "labels.jsonl", "--data-dir": ".", "--output": "w.safetensors"}
    for change, expected in (
        ({"--labels": "none.jsonl"}, "none.jsonl"),
        ({"--output": "weights.bin"}, ".safetensors"),
        ({"--output": "none/weights.safetensors"}, "folder"),
        ({"--next": "9"}, "window"),
        ({"--transform": "sqrt"}, "transform"),
        ({"--top-k": "101"}, "k must be in [1, 100], got 101"),
        ({"--hidden": "0"}, "hidden"),
        ({"--prefix-file": "none.txt"}, "none.txt"),
    ):
        options = {**given, **change}
        assert_refused(run("train-evaluator", *(part for pair in options.items() for part in pair)), expected)
