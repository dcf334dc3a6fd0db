"""The C++ hot paths take no more instructions than recorded, within the bound of the script."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "instruction_counts.py"


@pytest.mark.gate("instructions")
def test_hot_paths_take_no_more_instructions_than_recorded() -> None:
    found = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    if found.returncode == 2:
        pytest.skip((found.stdout + found.stderr).strip())
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_gate_can_fail() -> None:
    compare = runpy.run_path(str(SCRIPT))["compare"]
    recorded = {"avx2: a": 1000, "avx2: b": 1000}
    assert compare({"avx2: a": 1020, "avx2: b": 900}, recorded) == []
    assert compare({"avx2: a": 1040}, recorded) == ["avx2: a: 1040 instructions, recorded 1000 (+4.0 %)"]
    assert compare({"avx2: c": 1}, recorded) == ["avx2: c: not recorded; run with --record"]
