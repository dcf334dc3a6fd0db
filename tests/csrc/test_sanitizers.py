"""The C++ ops under the address and undefined-behaviour sanitizers: their own tests, and random arguments."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("sanitize.py")


def sanitized(*arguments: str) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, said[-5000:]
    assert "ERROR: AddressSanitizer" not in said and "runtime error:" not in said


@pytest.mark.gate("sanitizers")
def test_the_fast_tests_of_the_ops() -> None:
    sanitized("test")


@pytest.mark.gate("fuzzer")
def test_a_minute_of_random_arguments() -> None:
    sanitized("fuzz", "--seconds", "60")
