"""Run `caw` in this process, write what it reads, read what it writes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from caw.cli import app

KEY = "correct horse battery staple"
NOTHING: Mapping[str, str] = {}


def run(
    *arguments: str, key: str | None = KEY, stdin: str | bytes | None = None, environment: Mapping[str, str] = NOTHING
) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"CAW_KEY": key, **environment}, input=stdin)


def generate(model: str, *arguments: str, **settings: Any) -> Any:
    return run("generate", "--model", model, "--max-new-tokens", "12", *arguments, **settings)


def write_prompts(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps({"prompt": f"the sky {i}"}) + "\n" for i in range(count)))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def assert_refused(result: Any, expected: str) -> None:
    assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("caw: ")
    assert expected in result.stderr, result.stderr
    assert "Traceback" not in result.output and KEY not in result.output
