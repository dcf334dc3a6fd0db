"""Progress: a bar where somebody looks, lines where nobody does; both say what is done and the time left."""

import io
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caw.io import progress
from caw.io.progress import DOING, EVERY, SOON, Bar, GenerationProgress, doing, silent, spoken

PACKAGE = Path(__file__).parents[2] / "caw"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)


@pytest.fixture
def log(capsys: pytest.CaptureFixture) -> Callable[[], list[str]]:
    return lambda: capsys.readouterr().err.splitlines()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def go(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "clock", made)
    return made


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


def test_a_terminal_shows_the_time_left(terminal: None, clock: Clock) -> None:
    with Bar(10, "measuring", "texts") as bar:
        for _ in range(5):
            clock.go(8)
            bar()
        assert bar.bar is not None
        task = bar.bar.tasks[0]
        assert (task.completed, task.time_remaining) == (5, 40.0)
        drawn = io.StringIO()
        from rich.console import Console

        Console(file=drawn, width=120, force_terminal=True).print(bar.bar.get_renderable())
    shown = re.sub(r"\x1b\[[0-9;]*m", "", drawn.getvalue())
    assert "measuring" in shown and "5/10 texts" in shown and "0:00:40 0:00:40" in shown


def test_lines_come_at_once_then_now_and_then_and_at_the_end(log: Callable[[], list[str]], clock: Clock) -> None:
    with Bar(48, "measuring swaps", "texts", announced=True) as bar:
        assert bar.lines is not None
        assert log() == []
        clock.go(SOON)
        bar.lines.tick()
        assert log() == ["caw: measuring swaps: 0 of 48 texts, 1 s so far"]
        for _ in range(4):  # 10 s each
            clock.go(10)
            bar()
        assert log() == ["caw: measuring swaps: 3 of 48 texts, about 7 min 45 s left"]
        clock.go(EVERY)  # one piece takes long
        bar.lines.tick()
        assert log() == ["caw: measuring swaps: 4 of 48 texts, about 13 min 1 s left"]
        for _ in range(44):
            bar(tokens=2)
        assert log() == []
    assert log() == ["caw: measuring swaps: 48 of 48 texts, 88 tokens in 1 min 11 s"]


def test_short_work_says_nothing(log: Callable[[], list[str]], clock: Clock) -> None:
    with Bar(5, "labelling", "documents", announced=True) as bar:
        clock.go(SOON / 2)
        bar(pieces=5)
    with Bar(5, "generating", "texts") as bar:
        clock.go(EVERY - 1)
        bar(pieces=5)
    with doing("loading a model", announced=True):
        pass
    assert log() == []


def test_a_part_has_its_name_and_the_whole_its_end(log: Callable[[], list[str]], clock: Clock) -> None:
    with Bar(2, "training", "networks") as bar:
        bar.begin("training on log probabilities")
        clock.go(EVERY)
        bar()
        bar()
    assert log() == [
        "caw: training on log probabilities: 1 of 2 networks, about 30 s left",
        "caw: training: 2 of 2 networks in 30 s",
    ]


def test_what_failed_has_no_end(log: Callable[[], list[str]], clock: Clock) -> None:
    with pytest.raises(ValueError, match="bad"), Bar(3, "reading", "texts") as bar:
        clock.go(EVERY)
        bar()
        raise ValueError("bad")
    assert log() == ["caw: reading: 1 of 3 texts, about 1 min 0 s left"]
    with pytest.raises(ValueError, match="bad"), doing("loading"):
        raise ValueError("bad")
    assert log() == [] and not [t for t in threading.enumerate() if t.name == "caw-progress"]


def test_lines_come_while_a_single_piece_takes_long(
    log: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.05)
    started, lines = time.monotonic(), list[str]()
    with doing("loading a model"):
        while time.monotonic() - started < 10 and len(lines) < 3:
            time.sleep(0.01)
            lines += log()
    assert lines[:3] == ["caw: loading a model"] * 3


def test_a_log_that_takes_no_more_stops_nothing(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    with Bar(3, "reading", "texts", announced=True) as bar:
        clock.go(EVERY)
        bar(pieces=3)
    assert bar.done == 3


@pytest.mark.parametrize(("seconds", "said"), [
    (0, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3599, "59 min 59 s"), (3600, "1 h 0 min"), (9000, "2 h 30 min"),
])  # fmt: skip
def test_durations(seconds: float, said: str) -> None:
    assert spoken(seconds) == said


@pytest.mark.parametrize("watch", [lambda: doing("generating"), lambda: Bar(3, "generating")])
def test_stdout_stays_stdout(watch: Any, terminal: None, capsys: pytest.CaptureFixture) -> None:
    """`caw generate --prompt ... > file` at a terminal showed the text there and left the file empty."""
    with watch():
        print("a text")
    assert capsys.readouterr().out == "a text\n"


@pytest.mark.parametrize(("total", "enabled", "quiet"), [(1, True, False), (3, False, False), (3, True, True)])
@pytest.mark.parametrize("looked_at", [True, False])
def test_nothing_is_shown_otherwise(
    total: int, enabled: bool, quiet: bool, looked_at: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys.stderr, "isatty", lambda: looked_at, raising=False)
    with silent(quiet):
        with GenerationProgress(total, enabled=enabled) as bar:
            clock.go(EVERY)
            bar(5)
            bar.note("capturing")
        if quiet:
            with doing("loading"):
                clock.go(EVERY)
    assert bar.bar is None and bar.lines is None
    assert capsys.readouterr().err == ""


def test_rich_is_imported_only_for_a_bar_that_is_shown() -> None:
    code = "import sys, caw.io.progress as p; p.Bar(5, 'x'); sys.exit('rich' in sys.modules)"
    environment = {"PYTHONPATH": str(PACKAGE.parent), "PATH": ""}
    assert subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True).returncode == 0
