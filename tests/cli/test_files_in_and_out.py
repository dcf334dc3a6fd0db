"""Files of the commands: no output over an input, no device, no page of no bytes, no bad id that stops the others."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.running import KEY, assert_refused, generate, read, run, write_prompts

pytestmark = pytest.mark.usefixtures("environment")
posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX files")
BAD_ID = '{"id": "\\ud800", "prompt": "the sky", "text": "the sky"}\n'


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


def test_texts_have_an_end(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caw.io.inputs.LONGEST", 1000)
    monkeypatch.setattr("caw.io.inputs.read_bounded.__defaults__", (1000,))
    long = "sky " * 300
    (tmp_path / "long.txt").write_text(long)
    assert_refused(run("detect", "--tokenizer", model, str(tmp_path / "long.txt")), "has more")
    assert_refused(run("detect", "--tokenizer", model, "-", stdin=long), "stdin must have at most")
    assert_refused(run("detect", "--tokenizer", model, "--text", "-", stdin=long), "stdin must have at most")
    assert_refused(generate(model, "--prompt", "-", stdin=long), "stdin must have at most")
    same = [run("detect", "--tokenizer", model, *given, stdin="the sky") for given in (("-",), ("--text", "-"))]
    assert same[0].exit_code == 0 and same[0].stdout == same[1].stdout


def test_an_id_that_no_line_can_hold_is_a_bad_line(model: str, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"id": "a", "prompt": "the sky"}\n' + BAD_ID + '{"id": "b", "prompt": "the sea"}\n')
    given = ("-i", str(prompts), "-o", str(out))
    for again in ((), ("--resume",)):
        result = generate(model, *given, *again)
        assert result.exit_code == 1 and f"{prompts}, line 2: id must be valid Unicode" in result.stderr
        assert sorted(line["id"] for line in read(out)) == ["a", "b"]
    assert out.read_bytes() == out.read_bytes().decode().encode()


def test_a_page_is_whole_or_as_it_was(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, page = tmp_path / "texts.jsonl", tmp_path / "page.html"
    texts.write_text('{"id": "a", "text": "the sky is blue"}\n' + BAD_ID)
    given = ("detect", "--tokenizer", model, "-i", str(texts), "--html", str(page))
    result = run(*given)
    assert result.exit_code == 1 and "line 2: id must be valid Unicode" in result.stderr
    good = page.read_bytes()
    assert good.endswith(b"</html>\n")

    def broken(*arguments: Any) -> str:
        raise ValueError("no page today")

    monkeypatch.setattr("caw.detection.html_report._article", broken)
    assert run(*given).exit_code == 2
    assert page.read_bytes() == good and sorted(os.listdir(tmp_path)) == ["page.html", "texts.jsonl"]


@posix
def test_two_processes_on_one_output(model: str, tmp_path: Path) -> None:
    from caw.io.jsonl import JsonlWriter

    prompts, out = write_prompts(tmp_path / "prompts.jsonl", 2), tmp_path / "out.jsonl"
    with JsonlWriter(out):
        result = generate(model, "-i", str(prompts), "-o", str(out), "--resume")
        assert_refused(result, f"{out} is being written by another process")
    assert generate(model, "-i", str(prompts), "-o", str(out), "--resume").exit_code == 0
    assert len(read(out)) == 2


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
