"""`caw tune` on a tiny model."""

import json
from pathlib import Path

import pytest
import torch
from cli.running import KEY, run
from tiny import save_tiny

from caw.evaluator import Evaluator, FeatureSpec
from caw.io.vocabulary import Vocabulary
from caw.models import load_tokenizer

pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("tune")
    torch.manual_seed(3)
    vocabulary = Vocabulary.of(load_tokenizer(save_tiny(folder / "tiny")))
    Evaluator(FeatureSpec(), hidden=8, vocabulary=vocabulary).save(folder / "tiny.safetensors")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in ("the sky", "a small text", "blue light")))
    return [
        "tune", "--model", str(folder / "tiny"), "--evaluator", str(folder / "tiny.safetensors"),
        "--input", str(prompts), "--max-new-tokens", "16", "--dtype", "float32",
    ]  # fmt: skip


def test_share_needs_no_key(setup: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run(*setup, "--protect", "0.5", "--json", str(out), "--max-prompts", "2", key=None)
    assert done.exit_code == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["reached"] and found["prompts"] == 2 and found["tried"] == [] and found["watermark"] is None
    assert 0.5 <= found["chosen"]["protected"] < 0.6
    assert f"--theta {found['chosen']['theta']}" in done.stdout and "chosen" in done.stdout


def test_power(setup: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run(*setup, "--power", "0.5", "--beta", "3", "--fpr", "0.01", "--json", str(out))
    assert done.exit_code == 0, (done.stderr, done.stdout)
    found = json.loads(out.read_text())
    assert found["chosen"]["power"] >= 0.5 and found["chosen"]["beta"] == 3.0 and 1 <= len(found["tried"]) <= 5
    assert KEY not in out.read_text() + done.stdout + done.stderr


def test_power_out_of_reach_is_said(setup: list[str]) -> None:
    done = run(*setup, "--power", "0.99", "--beta", "0.01", "--fpr", "1e-9")
    assert done.exit_code == 1 and "no setting reaches power 0.99" in done.stderr


def test_bad_input_is_named(setup: list[str], tmp_path: Path) -> None:
    for arguments, message in (
        ((), "got neither"),
        (("--protect", "2"), "in [0, 1]"),
        (("--power", "0.9", "--protect", "0.5", "--beta", "2"), "leave it out"),
        (("--power", "0.9", "--watermark", "exp", "--delta", "2"), "leave it out"),
        (("--protect", "0.5", "--json", str(tmp_path / "no" / "x.json")), "folder must exist"),
    ):
        done = run(*setup, *arguments)
        assert done.exit_code == 2 and message in done.stderr, (arguments, done.stderr)
    assert "requires a key" in run(*setup, "--power", "0.9", key=None).stderr
