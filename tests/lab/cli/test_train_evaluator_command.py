"""`caw train-evaluator`: from labels to weights, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli.running import assert_refused, generate, run, write_prompts

from caw.detection.weights import TokenWeights
from caw.io import progress

pytestmark = pytest.mark.usefixtures("environment")


def test_train_evaluator(model: str, tmp_path: Path) -> None:
    """From labels to weights that `generate` takes; every number of these sums is key."""
    (tmp_path / "toy").mkdir()
    rows, labels = [], []
    for i in range(40):
        answer = f"so {i} is small\n#### {2 * i}"
        at = answer.index(str(i))
        rows.append({"question": f"{i} plus {i}?", "answer": answer})
        labels.append({"dataset": "toy", "split": "train", "index": i, "spans": [[at, at + len(str(i))]]})
    for name, lines in (("toy/train.jsonl", rows), ("labels.jsonl", labels)):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    weights = tmp_path / "tiny.safetensors"
    result = run(
        "train-evaluator", "--model", model, "--labels", str(tmp_path / "labels.jsonl"), "--data-dir", str(tmp_path),
        "--output", str(weights), "--hidden", "8", "--max-epochs", "2", "--transform", "gap", "--top-k", "20",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    written = json.loads(weights.with_suffix(".json").read_text())
    assert (written["features"]["transform"], written["features"]["k"], written["model"]) == ("gap", 20, model)
    assert f"{written['metrics']['evaluators']['capacity']['auroc']:.3f}" in result.stdout
    result = generate(model, "--prompt", "the sky", "--policy", "capacity", "--evaluator", str(weights))
    assert result.exit_code == 0 and result.stderr.count("\n") == 1 and "policy capacity" in result.stderr


def test_without_labels(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, and texts that `caw generate` wrote, to weights that `generate` takes; all work is named."""
    prompts, written = write_prompts(tmp_path / "prompts.jsonl", 20), tmp_path / "written.jsonl"
    result = generate(model, "--input", str(prompts), "--with-prompt", "--output", str(written))
    assert result.exit_code == 0, result.stderr
    weights = tmp_path / "own.safetensors"
    monkeypatch.setattr(progress, "SOON", 0.0)
    result = run(
        "train-evaluator", "--model", model, "--self", "--prompts", str(prompts), "--texts", str(written), "--output",
        str(weights), "--max-new-tokens", "12", "--horizon", "2", "--hidden", "8", "--max-epochs", "2", "--no-chat",
        "--positions", str(tmp_path / "seen"),
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    ends = re.findall(r"^caw: (.*?)(?:, \d+ tokens)? in \d+ s$", result.stderr, re.MULTILINE)
    assert ends == [
        f"loading {model}: done", "writing greedy texts: 20 of 20 texts",
        "writing texts at temperature 0.7: 20 of 20 texts",
        "measuring swaps: 60 of 60 texts", "training: 9 of 9 networks",
        "measuring on held-out prompts: done",
    ]  # fmt: skip
    made = json.loads(weights.with_suffix(".json").read_text())
    assert made["dtype"] in ("float32", "bfloat16"), "the one that it was read in"
    assert f"{made['metrics']['evaluators']['capacity']['auroc']:.3f}" in result.stdout and "entropy" in result.stdout
    assert made["data"]["documents"] == 60 and made["data"]["settings"]["horizon"] == 2
    table = tmp_path / "table.safetensors"
    result = run(  # it ended in a KeyError on folders of --self
        "detection-weights", "--tokenizer", model, "--positions", str(tmp_path / "seen"), "--evaluator", str(weights),
        "--output", str(table),
    )  # fmt: skip
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert len(TokenWeights.load(table).provenance["texts_sha256"]) == 64
    result = generate(model, "--prompt", "the sky", "--policy", "capacity", "--evaluator", str(weights))
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--self", "--labels", "labels.jsonl"], "--labels is for training from labels"),
        (["--self", "--statement", "It is {answer}."], "--statement is for training from labels"),
        (["--self", "--template", "Q: {question}"], "--template is for training from labels"),
        (["--prompts", "labels.jsonl"], "--prompts requires --self"),
        (["--texts", "labels.jsonl"], "--texts requires --self"),
        (["--horizon", "3"], "--horizon requires --self"),
        (["--self", "--horizon", "0"], "horizon must be"),
        (["--chat"], "--chat requires --self"),
        ([], "--labels with --data-dir, or --self"),
        (["--self", "--prompts", "none.jsonl"], "none.jsonl"),
        (["--self", "--prompts", "labels.jsonl"], "must have at least one line"),
    ],
)
def test_one_way_to_train_at_a_time(
    options: list[str], expected: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.jsonl").touch()
    assert_refused(run("train-evaluator", "--model", model, "--output", "w.safetensors", *options), expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"--labels": "none.jsonl"}, "none.jsonl"),
        ({"--output": "weights.bin"}, ".safetensors"),
        ({"--output": "none/weights.safetensors"}, "folder"),
        ({"--next": "9"}, "window"),
        ({"--transform": "sqrt"}, "transform"),
        ({"--top-k": "101"}, "k must be in [1, 100], got 101"),
        ({"--hidden": "0"}, "hidden"),
        ({"--prefix-file": "none.txt"}, "none.txt"),
    ],
)
def test_bad_train_evaluator(
    change: dict[str, str], expected: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.jsonl").touch()
    options = {"--model": model, "--labels": "labels.jsonl", "--data-dir": ".", "--output": "w.safetensors", **change}
    assert_refused(run("train-evaluator", *(part for pair in options.items() for part in pair)), expected)
