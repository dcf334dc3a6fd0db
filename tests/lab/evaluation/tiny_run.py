"""A run on a tiny random model: its cells, and how to start it in this process or in another."""

import sys
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from caw.cli import app
from caw_lab.evaluation.config import Config
from caw_lab.evaluation.config_file import config_of
from caw_lab.evaluation.run import Runner
from caw_lab.evaluation.store import Store

CELLS = ["tiny.mine.none", *(f"tiny.mine.kgw.{policy}.{key}" for key in (0, 1) for policy in ("soft", "hard", "caw"))]


def runner(made: dict[str, Any], folder: Path, **options: Any) -> Runner:
    config: Config = config_of({**made, "output": str(folder)})
    return Runner(config, Store(folder), say=lambda line: None, progress=False, command="test", **options)


def texts(folder: Path) -> dict[str, dict[str, str]]:
    return {cell.name: {g.id: g.text for g in cell.read()} for cell in Store(folder).cells()}


def command(made: dict[str, Any], folder: Path, *options: str) -> list[str]:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**made, "output": str(folder / "out")}, sort_keys=False))
    return [sys.executable, "-m", "caw.cli", "evaluate", "run", "--config", str(path), "--threads", "1", *options]


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["evaluate", "run", *arguments])
