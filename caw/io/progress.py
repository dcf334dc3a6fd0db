"""Progress on stderr: a bar with the remaining time on a terminal, an occasional line elsewhere.

On a terminal `rich` draws the bar. Where stderr is a file, a pipe or a notebook, a line says how much is done and what
is left: the first as soon as announced work has taken SOON seconds, then at most one in EVERY seconds, also while a
single piece takes longer, and one at the end. Work that is over before its first line is due says nothing.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
DOING = "generating"
STEADY = 600.0  # seconds the estimate looks back: work finishes in bursts of a batch
EVERY = 30.0  # seconds between two lines
SOON = 1.0  # seconds before the first line of announced work: what is over by then has nothing to say
SHORT = 0.02  # seconds; the least that the thread sleeps which writes lines
clock = time.monotonic


@dataclass(frozen=True)
class _Voice:
    """silent: nothing is shown. name: what texts are generated for, "" = that they are."""

    silent: bool = False
    name: str = ""


LOUD = _Voice()
_voice: ContextVar[_Voice] = ContextVar("caw_progress", default=LOUD)


@contextlib.contextmanager
def silent(on: bool = True) -> Iterator[None]:
    token = _voice.set(replace(_voice.get(), silent=on or _voice.get().silent))
    try:
        yield
    finally:
        _voice.reset(token)


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Bars over generated texts have this name inside the block, and are announced."""
    token = _voice.set(replace(_voice.get(), name=what))
    try:
        yield
    finally:
        _voice.reset(token)


class Lines:
    """Lines on stderr about work that goes on. say: gives the line, of the seconds so far and whether it is over."""

    def __init__(self, say: Any, announced: bool) -> None:
        self.say, self.announced, self.spoke = say, announced, False
        self.lock, self.over = threading.Lock(), threading.Event()
        self.began, self.due = 0.0, math.inf
        self.pulse = threading.Thread(target=self._beat, name="caw-progress", daemon=True)

    def start(self) -> None:
        self.began = clock()
        self.due = self.began + (SOON if self.announced else EVERY)
        self.pulse.start()

    def tick(self) -> None:
        """Write a line if one is due."""
        with self.lock:
            if clock() >= self.due and not self.over.is_set():
                self._write(over=False)

    def stop(self, *, failed: bool) -> None:
        """No more lines but the last one, if there was a first or one is due, and the work came to its end."""
        with self.lock:
            self.over.set()
        self.pulse.join()
        if (self.spoke or clock() >= self.due) and not failed:
            self._write(over=True)

    def _write(self, *, over: bool) -> None:
        now = clock()
        self.spoke, self.due = True, now + EVERY
        with contextlib.suppress(OSError, ValueError):  # a log that takes no more is no reason to stop the work
            print(f"caw: {self.say(now - self.began, over)}", file=sys.stderr, flush=True)

    def _beat(self) -> None:
        while not self.over.wait(max(self.due - clock(), SHORT)):
            self.tick()


class Bar:
    """Progress over pieces of work inside its block; call it for each finished piece.

    Nothing is shown, and rich is not imported, for a single piece that is not announced.

    Args:
        total: pieces; None = unknown: they are counted, and no time left is given. doing: what is done, in front.
        unit: what the pieces are, behind their count. enabled: False = never shown.
        announced: long work of a command: a single piece is shown as well, and the first line comes at once.
    """

    def __init__(
        self, total: int | None, doing: str, unit: str = "", *, enabled: bool = True, announced: bool = False
    ) -> None:
        self.total, self.doing, self.unit, self.tokens, self.done = total, doing, unit, 0, 0
        self.whole = doing
        self.bar: Progress | None = None
        self.lines: Lines | None = None
        if not enabled or _voice.get().silent:
            return
        if not sys.stderr.isatty():
            # a call of the library for a single text starts no thread
            self.lines = Lines(self.line, announced) if announced or total is None or total > 1 else None
        elif announced or total is None or total > 1:
            self.bar = _rich_bar()

    def __enter__(self) -> Bar:
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task(self.doing, total=self.total, detail=self.unit)
        if self.lines is not None:
            self.lines.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()
        if self.lines is not None:
            self.lines.stop(failed=error[0] is not None)

    def __call__(self, tokens: int = 0, pieces: int = 1) -> None:
        """Count this many more finished pieces; tokens: of them, shown after the bar if there are any."""
        self.tokens += tokens
        self.done += pieces
        if self.bar is not None:
            detail = f"{self.unit}, {self.tokens} tokens" if self.tokens else self.unit
            self.bar.update(self.task, advance=pieces, detail=detail)
        if self.lines is not None and self.done != self.total:  # the last line comes at the end
            self.lines.tick()

    def finish(self, pieces: int) -> None:
        """Count this many more finished pieces."""
        self(pieces=pieces)

    def begin(self, doing: str) -> None:
        """Set the current part of the work; the total count goes on."""
        self.doing = doing
        self.note("")

    def note(self, message: str) -> None:
        """Show what is being prepared instead of the current work; "" = the latter again."""
        if self.bar is not None and self.bar.tasks:
            self.bar.update(self.task, description=message or self.doing)

    def line(self, seconds: float, over: bool) -> str:
        """Return the line after this many seconds, with the remaining time at the mean speed so far."""
        count = f"{self.done} {self.unit}" if self.total is None else f"{self.done} of {self.total} {self.unit}"
        tokens = f", {self.tokens} tokens" if self.tokens else ""
        said = f"{self.whole if over else self.doing}: {count.strip()}{tokens}"
        if over:
            return f"{said} in {spoken(seconds)}"
        if self.total is None or not self.done:
            return f"{said}, {spoken(seconds)} so far" if seconds >= 1 else said
        return f"{said}, about {spoken(seconds / self.done * (self.total - self.done))} left"


def _rich_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Left

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(), Left(),
    )  # fmt: skip
    # rich would send what is printed to stdout meanwhile to stderr
    return Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, speed_estimate_period=STEADY,
        get_time=lambda: clock(),
    )  # fmt: skip


def spoken(seconds: float) -> str:
    """Format a duration for people: 8 s, 3 min 20 s, 1 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@contextlib.contextmanager
def doing(what: str, *, announced: bool = False) -> Iterator[Any]:
    """Show the current work inside the block, for work without a count: a spinner on a terminal, otherwise lines."""
    if _voice.get().silent:
        yield None
        return
    if not sys.stderr.isatty():
        lines = Lines(lambda seconds, over: _uncounted(what, seconds, over), announced)
        lines.start()
        failed = True
        try:
            yield None
            failed = False
        finally:
            lines.stop(failed=failed)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner

    # rich's own `status` sends what is printed to stdout meanwhile, a generated text say, to stderr
    console = Console(stderr=True)
    with Live(
        Spinner("dots", what), console=console, transient=True, redirect_stdout=False, refresh_per_second=12.5
    ) as live:
        yield live


def _uncounted(what: str, seconds: float, over: bool) -> str:
    if over:
        return f"{what}: done in {spoken(seconds)}"
    return f"{what}, {spoken(seconds)} so far" if seconds >= 1 else what


class GenerationProgress(Bar):
    """A bar over texts; call it with the number of tokens of each finished one."""

    def __init__(self, total: int, *, enabled: bool = True) -> None:
        name = _voice.get().name
        super().__init__(total, name or DOING, "texts", enabled=enabled, announced=bool(name))


def watched(
    pieces: Iterable[T], doing: str, unit: str = "", *, total: int | None = None, enabled: bool = True,
    announced: bool = False,
) -> Iterator[T]:  # fmt: skip
    """Yield the pieces, with a bar that moves when the next is asked for; total: None = unknown; the rest: `Bar`'s."""
    if total is None and isinstance(pieces, Sized):
        total = len(pieces)
    with Bar(total, doing, unit, enabled=enabled, announced=announced) as bar:
        for piece in pieces:
            yield piece
            bar()
