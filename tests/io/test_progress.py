"""The progress bar: shown where somebody looks, and it says what is being done or prepared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from caw.io.progress import DOING, Bar, GenerationProgress, doing, watched

PACKAGE = Path(__file__).parents[2] / "caw"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)


def test_notes_replace_what_is_being_done(terminal: None) -> None:
    bar = GenerationProgress(3)
    assert bar.bar is not None
    bar.note("before it is shown")  # a decoder may prepare early: nothing to show, nothing breaks
    with bar:
        bar(5)
        bar.note("capturing a CUDA graph (batch 8, 2 candidates)")
        assert bar.bar.tasks[0].description == "capturing a CUDA graph (batch 8, 2 candidates)"
        bar.note("")
        bar(7)
        task = bar.bar.tasks[0]
        assert (task.description, task.completed, task.fields["detail"]) == (DOING, 2, "texts, 12 tokens")
        bar.begin("generating the rest")
        assert task.description == "generating the rest"


def test_a_bar_without_tokens_counts_pieces(terminal: None) -> None:
    with Bar(10, "attacking", "texts") as bar:
        bar(pieces=4)
        assert bar.bar is not None
        task = bar.bar.tasks[0]
        assert (task.completed, task.total, task.fields["detail"]) == (4, 10, "texts")


def test_watched_gives_every_piece(terminal: None) -> None:
    assert list(watched([1, 2, 3], "counting")) == [1, 2, 3]
    assert list(watched(iter("ab"), "counting")) == ["a", "b"]


@pytest.mark.parametrize("watch", [lambda: doing("generating"), lambda: Bar(3, "generating")])
def test_stdout_stays_stdout(watch: Any, terminal: None, capsys: pytest.CaptureFixture) -> None:
    """`caw generate --prompt ... > file` at a terminal showed the text there and left the file empty."""
    with watch():
        print("a text")
    assert capsys.readouterr().out == "a text\n"


@pytest.mark.parametrize(("total", "enabled", "looked_at"), [(1, True, True), (3, False, True), (3, True, False)])
def test_nothing_is_shown_otherwise(
    total: int, enabled: bool, looked_at: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: looked_at, raising=False)
    with GenerationProgress(total, enabled=enabled) as bar:
        bar(5)
        bar.note("capturing")
    assert bar.bar is None
    assert capsys.readouterr().err == ""


def test_rich_is_imported_only_for_a_bar_that_is_shown() -> None:
    code = "import sys, caw.io.progress as p; p.Bar(5, 'x'); sys.exit('rich' in sys.modules)"
    environment = {"PYTHONPATH": str(PACKAGE.parent), "PATH": ""}
    assert subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True).returncode == 0


def test_there_is_one_progress_bar() -> None:
    """Copies of it differed in what they showed and in where they stayed silent."""
    shown = ("rich.progress", "rich.live", ".status(")
    users = [p for p in PACKAGE.rglob("*.py") if any(name in p.read_text(encoding="utf-8") for name in shown)]
    assert users == [PACKAGE / "io" / "progress.py"]
