"""The benchmarks still run: seconds each, numbers that mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
SMOKE = {
    "bench_kernels": ["--device", "cpu", "--smoke", "--rounds", "1"],
    "bench_generate": ["--tokens", "2", "--rounds", "1"],
    "bench_floor": ["--tokens", "4", "--rounds", "1", "--threads", "1", "--batches", "1", "--dtypes", "float32"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMOKE)
def test_runs(name: str, tmp_path: Path, demo_tokenizer: object) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, str(FOLDER / f"{name}.py"), *SMOKE[name], "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert found["rows"] and found["arguments"] and found["versions"]["torch"]
    assert done.stdout.count("|") > 10
