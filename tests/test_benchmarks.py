"""The benchmarks still run: seconds each, numbers that mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
SMOKE = {
    "bench_kernels": ["--device", "cpu", "--smoke", "--rounds", "1"],
    "bench_generate": ["--tokens", "2", "--rounds", "1"],
    "bench_generate of random weights": ["--shapes", "tiny", "--tokens", "2", "--rounds", "1", "--prompt", "9"],
    "bench_floor": ["--tokens", "4", "--rounds", "1", "--threads", "1", "--batches", "1", "--dtypes", "float32"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMOKE)
def test_runs(name: str, tmp_path: Path, demo_tokenizer: object) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, str(FOLDER / f"{name.split()[0]}.py"), *SMOKE[name], "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert found["rows"] and found["arguments"] and found["versions"]["torch"]
    assert done.stdout.count("|") > 10


def test_gpu_check_bounds_every_part_and_reports(tmp_path: Path) -> None:
    """Without a GPU the parts fail: it says so of each, within the time, in at most 100 lines."""
    command = [sys.executable, str(FOLDER / "gpu_check.py"), "--out", str(tmp_path), "--scale", "0.2"]
    done = subprocess.run([*command, "--only", "kernels"], capture_output=True, text=True, timeout=100)
    (result,) = json.loads((tmp_path / "summary.json").read_text())
    expected_ok = torch.cuda.is_available()
    assert (done.returncode == 0) == (result["state"] == "ok") and (expected_ok or done.returncode == 1)
    assert len(done.stdout.splitlines()) <= 101 and (tmp_path / "kernels.log").is_file()
    wrong = subprocess.run([*command, "--only", "nothing"], capture_output=True, text=True, timeout=100)
    assert wrong.returncode == 2 and "expected parts among build" in wrong.stderr


def test_gpu_check_fits_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import gpu_check

    assert sum(part.seconds for part in gpu_check.parts(Path("out"), "90")) <= 540  # nine minutes, all at their limits
