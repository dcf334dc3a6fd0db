"""Files of the commands: no output over an input, no device, no page of no bytes, no bad id that stops the others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.running import KEY, assert_refused, generate, run, write_prompts

pytestmark = pytest.mark.usefixtures("environment")
posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX files")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file that every kind of input takes for its own: what is in it is never read."""
    path = tmp_path / "e.jsonl"
    path.write_text('{"text": "the sky is blue", "prompt": "the sky", "id": "a"}\n')
    return path


# IN is the input, OUT the same file by another name
OVER_AN_INPUT = {
    "generate": ("generate", "--model", "MODEL", "-i", "IN", "-o", "OUT", "--resume"),
    "generate, evaluator": ("generate", "--model", "MODEL", "--prompt", "x", "--evaluator", "IN", "-o", "OUT"),
    "detect": ("detect", "--tokenizer", "MODEL", "-i", "IN", "--html", "OUT"),
    "detect FILE": ("detect", "--tokenizer", "MODEL", "IN", "--html", "OUT"),
    "detect --config": ("detect", "--tokenizer", "MODEL", "--text", "x", "--config", "IN", "--html", "OUT"),
    "detect --qq": ("detect", "--tokenizer", "MODEL", "--null-report", "IN", "--qq", "OUT"),
    "detect --power": ("detect", "--tokenizer", "MODEL", "--power", "IN", "--html", "OUT"),
    "detection-weights": ("detection-weights", "--tokenizer", "MODEL", "-i", "IN", "--config", "x", "-o", "OUT"),
    "detection-weights --config": ("detection-weights", "--tokenizer", "x", "-i", "x", "--config", "IN", "-o", "OUT"),
    "train-evaluator": ("train-evaluator", "--model", "x", "--labels", "IN", "--data-dir", "FOLDER", "-o", "OUT"),
    "tune --json": ("tune", "--model", "MODEL", "-i", "IN", "--json", "OUT"),
    "evaluate evaluator": (
        "evaluate", "evaluator", "--model", "x", "--labels", "IN", "--data-dir", "FOLDER", "--json", "OUT",
    ),
    "demo": ("demo", "--evaluator", "IN", "--html", "OUT"),
}  # fmt: skip


@posix
@pytest.mark.parametrize("case", OVER_AN_INPUT)
def test_no_output_over_an_input(case: str, model: str, source: Path, tmp_path: Path) -> None:
    """`caw detect -i e.jsonl --html e.jsonl` put the page in the place of the texts."""
    before = source.read_bytes()
    (tmp_path / "symbolic.jsonl").symlink_to(source)
    (tmp_path / "hard.jsonl").hardlink_to(source)
    for name in ("e.jsonl", "symbolic.jsonl", "hard.jsonl"):
        values = {"IN": str(source), "OUT": str(tmp_path / name), "MODEL": model, "FOLDER": str(tmp_path)}
        assert_refused(run(*(values.get(a, a) for a in OVER_AN_INPUT[case])), "must be another file than")
    assert source.read_bytes() == before


def test_two_outputs_are_two_files(tmp_path: Path) -> None:
    both = str(tmp_path / "x")
    assert_refused(run("detect", "--text", "x", "--html", both, "--qq", both), "must be two files")
    assert not Path(both).exists()


@posix
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full"])
def test_devices_are_refused(device: str, model: str, source: Path, tmp_path: Path) -> None:
    detect, make = ("detect", "--tokenizer", model), ("generate", "--model", model)
    for given in [
        (*detect, device), (*detect, "-i", device), (*detect, "--null-report", device), (*detect, "--power", device),
        (*detect, "--text", "x", "--config", device), (*detect, "--text", "x", "--html", device),
        (*make, "-i", device), (*make, "-i", str(source), "-o", device, "--resume"),
        (*make, "-i", str(source), "-o", device), ("tune", "--model", model, "-i", device),
        ("evaluate", "run", "--config", device),
    ]:  # fmt: skip
        assert_refused(run(*given), "is a device")


def test_a_model_that_is_not_there_leaves_no_output(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "prompts.jsonl", 2), tmp_path / "out.jsonl"
    assert generate(str(tmp_path / "none"), "-i", str(prompts), "-o", str(out)).exit_code == 2
    assert not out.exists()


def test_options_that_no_line_can_hold_are_refused_at_once(model: str, tmp_path: Path) -> None:
    """`--stop $'\\xff'` is half of a surrogate pair to Python."""
    out = tmp_path / "out.jsonl"
    assert_refused(generate(model, "--prompt", "the sky", "--stop", "\udcff", "-o", str(out)), "surrogate")
    assert not out.exists()


@posix
def test_stdout_that_takes_nothing(source: Path) -> None:
    command = [sys.executable, "-m", "caw.cli", "detect", "--field", "ids", "-i", str(source), "--json"]
    source.write_text('{"ids": [1, 2, 3]}\n')
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env={**os.environ, "CAW_KEY": KEY}
        )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "no space left on device" in done.stderr
