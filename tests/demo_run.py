"""`caw demo` with its defaults, run once by a process: half a minute that two tests share."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

from click.testing import Result
from typer.testing import CliRunner

from caw.cli import app
from caw.demo import outputs


class Shown(NamedTuple):
    """What the command printed and wrote, what it gave to `run_demo` after model and tokenizer, and what that made."""

    result: Result
    page: str
    given: tuple[Any, ...]
    options: dict[str, Any]
    demo: outputs.Demo


@cache
def shown() -> Shown:
    calls: list[tuple[Any, ...]] = []
    real = outputs.run_demo

    def watched(model: Any, tokenizer: Any, *given: Any, **options: Any) -> outputs.Demo:
        calls.append((given, options, real(model, tokenizer, *given, **options)))
        return calls[-1][-1]

    with TemporaryDirectory() as folder, patch.object(outputs, "run_demo", watched):
        file = Path(folder) / "demo.html"
        result = CliRunner().invoke(app, ["demo", "--html", str(file)], env={"COLUMNS": "160"})
        assert result.exit_code == 0, result.stderr
        [(given, options, demo)] = calls
        return Shown(result, file.read_text(encoding="utf-8"), given, options, demo)
