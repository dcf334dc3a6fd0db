"""The run that a GPU at hand is asked for: its parts, their order and time, and its rehearsal."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import gpu_check
import pytest
import replays
import torch

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


def test_gpu_check_bounds_every_part_and_reports(tmp_path: Path) -> None:
    """Without a GPU the parts fail: it says so of each, within the time, in at most 100 lines."""
    command = [sys.executable, str(FOLDER / "gpu_check.py"), "--out", str(tmp_path), "--scale", "0.4"]
    done = subprocess.run([*command, "--only", "kernels_topk"], capture_output=True, text=True, timeout=100)
    (result,) = json.loads((tmp_path / "summary.json").read_text())
    expected_ok = torch.cuda.is_available()
    assert (done.returncode == 0) == (result["state"] == "ok") and (expected_ok or done.returncode == 1)
    assert len(done.stdout.splitlines()) <= 101 and "==== kernels_topk" in (tmp_path / "parts.log").read_text()
    wrong = subprocess.run([*command, "--only", "nothing"], capture_output=True, text=True, timeout=100)
    assert wrong.returncode == 2 and "expected parts among build" in wrong.stderr


def test_gpu_check_fits_its_time_its_lines_and_its_files() -> None:
    for arch, which in itertools.product(("90", None), gpu_check.TOTAL):
        found = gpu_check.parts(gpu_check.Place(Path("out"), arch), which)
        assert sum(part.seconds for part in found) <= gpu_check.TOTAL[which] - gpu_check.GRACE <= 560, which
        results = [{"part": p.name, "state": "ok", "seconds": 1.0, "tail": ["x"] * p.lines} for p in found]
        assert len(gpu_check.summary(results)) <= gpu_check.SUMMARY_LINES == 160
        assert gpu_check.summary(results)[-found[-1].lines - 1] == f"---- {found[-1].name}", "none is cut off"
        written = [word for part in found for word in part.command if word.endswith(".json")]
        assert len(written) == len(set(written)) == len(found) - 5, which
        # with nothing but torch and Triton they say what they lack instead of failing at an import
        assert all({"scipy", "transformers"} <= set(p.needs) for p in found if p.name != "build")
        assert [p.name for p in found if "pytest" in p.needs] == ["tests"]
        for part in found:  # what is named must be there
            for word in part.command:
                path = word.removeprefix("--ignore=").split("::")[0]
                if path.startswith("tests/") or path.endswith(".py"):
                    assert (FOLDER.parent / path).exists(), word


def test_the_rehearsal_runs_and_measures_no_time(tmp_path: Path) -> None:
    """The top-100 in the interpreter, through gpu_check and back; `make gate NAME=rehearsal` does the rest."""
    command = [sys.executable, str(FOLDER / "gpu_check.py"), "--out", str(tmp_path), "--rehearsal", "--scale", "9"]
    done = subprocess.run([*command, "--only", "kernels_topk"], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout
    (row,) = json.loads((tmp_path / "kernels_topk.json").read_text())["rows"]
    assert row["rounds_us"]["caw"] == [2e6 + 1, 2e6 + 1], "two launches a call, and a look at the clock"


@pytest.mark.gate("rehearsal")
def test_the_whole_rehearsal(tmp_path: Path) -> None:
    """Every part of what a GPU will be asked, by the code that will ask it."""
    command = [sys.executable, str(FOLDER / "gpu_check.py"), "--out", str(tmp_path), "--rehearsal", "--scale", "20"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    results = json.loads((tmp_path / "summary.json").read_text())
    assert {result["state"] for result in results} == {"ok"} and len(results) == 23
    gathered = json.loads((tmp_path / "gathered.json").read_text())["parts"]
    assert len(gathered) == 18 and gathered["steps_b1"]["rows"] and "bench_steps.py" in gathered["steps_b1"]["command"]
    for batch in ("1", "8", "32"):
        found = json.loads((tmp_path / f"generate_b{batch}.json").read_text())
        assert found["complete"] and "rehearsal" in found["clock"]
        launches = {row["mode"]: row["ms_per_token"]["median"] / 1e3 for row in found["rows"]}
        # each look at the clock adds a millionth, which floats leave a trace of
        assert launches["plain"] == pytest.approx(20, abs=1e-9), "2 layers of 7 kernels, norm, logits; 4 outside"
        assert launches["plain"] < launches["exp+caw"] <= launches["kgw+caw"]
    kernels = [json.loads(path.read_text())["rows"] for path in tmp_path.glob("kernels_*.json")]
    assert len(kernels) == 4 and not any(row["wrong"] for rows in kernels for row in rows)
    assert list((tmp_path / "installed" / "caw").glob("_C*.so"))
    assert (tmp_path / "installed" / "caw" / "triton_kernels" / "tuned.py").is_file()
    tuned = json.loads((tmp_path / "tune.json").read_text())
    assert tuned["complete"] and len(tuned["rows"]) == 5 and all(row["chosen"] for row in tuned["rows"])
    wrong = [
        maker for row in tuned["rows"] for maker in row["makers"] if maker.get("error", "left out")[:8] != "left out"
    ]
    assert not wrong and len(json.loads((tmp_path / "cache/tuned" / tuned["file"]).read_text())["products"]) == 5
    for name in ("b1", "tuned"):
        found = json.loads((tmp_path / f"steps_{name}.json").read_text())
        assert found["complete"] and found["rows"][-1]["mode"] == ("exp+caw" if name == "b1" else "compiled-torch")
        assert not any("error" in row for row in found["rows"])
        assert found["rows"][0]["step_us"]["median"] == pytest.approx(20e6, abs=10), "launches of a plain step"


def test_a_share_that_cannot_be_is_an_error() -> None:
    assert not replays.impossible([{"share_of_bandwidth": 1.02}, {"share_of_bandwidth": None}, {"error": "none"}])
    said = replays.impossible([{"share_of_bandwidth": 0.5}, {"share_of_bandwidth": 1.03}])
    assert said.startswith("expected at most 1.02 of what a kernel moves that only reads, found 1.030")
    assert replays.read_bandwidth("cpu", small=True) > 0  # raises where what was read does not add up
