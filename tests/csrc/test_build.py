"""The CUDA sources compile for every architecture of the wheel; the fuzzer runs; failures leave their reason."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from caw import _ext

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_cuda_sources_compile() -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    script = ROOT / "csrc" / "compile_cuda.py"
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-3000:]
    lines = found.stdout.splitlines()
    assert [line.split(":")[0].split()[-1] for line in lines] == ["sm_80", "sm_90", "sm_100"] * (len(lines) // 3)
    assert lines and all(line.endswith(" 0 with spills") for line in lines)


def test_a_short_run_of_the_fuzzer() -> None:
    script = Path(__file__).with_name("fuzz.py")
    found = subprocess.run([sys.executable, str(script), "3"], capture_output=True, text=True, cwd=script.parent)
    assert found.returncode == 0, found.stdout + found.stderr[-2000:]


def test_a_missing_extension_says_why_and_what_to_do() -> None:
    reason = _ext._load("_no_such_extension")
    assert "_no_such_extension is not installed; build it with `pip install" in reason
