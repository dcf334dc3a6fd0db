"""The program itself: help, version, and a reader that goes away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.running import KEY, run, write_prompts

import caw

pytestmark = pytest.mark.usefixtures("environment")

COMMANDS = ("demo", "generate", "detect", "train-evaluator", "detection-weights", "label", "serve", "tune", "benchmark",
            *(f"evaluate {name}" for name in ("run", "attack", "perplexity", "report", "evaluator")),
            *(f"keys {name}" for name in ("create", "rotate", "revoke", "list", "rules", "master-key", "reseal")),
            *(f"audit {name}" for name in ("export", "verify", "public-key", "report")))  # fmt: skip


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_has_examples_and_no_key(command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout and f"caw {command}".strip() in result.stdout
    assert KEY not in result.output


def test_help_explains_exit_codes() -> None:
    # line breaks and panels differ with the terminal
    said = " ".join(run("detect", "--help").stdout.split())
    assert "1 some lines of --input were bad or a p-value differs from its receipt, 2 bad usage" in said
    assert "130 interrupted" in " ".join(run("--help").stdout.split())


def test_help_shows_brackets_and_braces() -> None:
    shown = " ".join(run("generate", "--help").stdout.split())
    assert "[0.25]" in shown and '{"prompt": ..., "id": ...}' in shown


def test_version() -> None:
    assert run("--version").stdout.strip() == f"caw {caw.__version__}"


@pytest.mark.slow
def test_the_program_ends_quietly_when_nobody_reads(model: str, tmp_path: Path) -> None:
    source = write_prompts(tmp_path / "prompts.jsonl", 30)
    script = f"{sys.executable} -m caw.cli generate --model {model} --input {source} --threads 1 | head -n 1"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "CAW_KEY": KEY}, check=False
    )
    assert len(done.stdout.splitlines()) == 1 and "Traceback" not in done.stderr
