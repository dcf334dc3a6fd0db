"""Progress bars on stderr, if it is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
DOING = "generating"
STEADY = 600.0  # seconds the estimate looks back: work finishes in bursts of a batch


class Bar:
    """A bar over pieces of work inside its block; call it for each finished piece.

    Nothing is shown, and rich is not imported, for a single piece or where stderr is no terminal.

    Args:
        total: pieces; None = unknown, a bar that only moves. doing: what is done, in front of the bar.
        unit: what the pieces are, behind their count. enabled: False = never shown.
    """

    def __init__(self, total: int | None, doing: str, unit: str = "", *, enabled: bool = True) -> None:
        self.total, self.doing, self.unit, self.tokens = total, doing, unit, 0
        self.bar: Progress | None = None
        if not enabled or (total is not None and total < 2) or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.progress import TimeRemainingColumn as Left

        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(), Left(),
        )  # fmt: skip
        # rich would send what is printed to stdout meanwhile to stderr
        self.bar = Progress(
            *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, speed_estimate_period=STEADY
        )

    def __enter__(self) -> Bar:
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task(self.doing, total=self.total, detail=self.unit)
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, tokens: int = 0, pieces: int = 1) -> None:
        """So many more pieces are finished; tokens: of them, counted behind the bar where there are any."""
        self.tokens += tokens
        if self.bar is not None:
            detail = f"{self.unit}, {self.tokens} tokens" if self.tokens else self.unit
            self.bar.update(self.task, advance=pieces, detail=detail)

    def finish(self, pieces: int) -> None:
        """So many more pieces are finished."""
        self(pieces=pieces)

    def begin(self, doing: str) -> None:
        """From now on something else is done, still counted together with what was."""
        self.doing = doing
        self.note("")

    def note(self, message: str) -> None:
        """Say what is being prepared instead of what is done; "" = the latter again."""
        if self.bar is not None and self.bar.tasks:
            self.bar.update(self.task, description=message or self.doing)


def doing(what: str) -> contextlib.AbstractContextManager[Any]:
    """A spinner that says what is done inside the block, for work that has no count."""
    if not sys.stderr.isatty():
        return contextlib.nullcontext()
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner

    # rich's own `status` sends what is printed to stdout meanwhile, a generated text say, to stderr
    console = Console(stderr=True)
    return Live(Spinner("dots", what), console=console, transient=True, redirect_stdout=False, refresh_per_second=12.5)


class GenerationProgress(Bar):
    """A bar over texts; call it with the number of tokens of each finished one."""

    def __init__(self, total: int, *, enabled: bool = True) -> None:
        super().__init__(total, DOING, "texts", enabled=enabled)


def watched(pieces: Iterable[T], doing: str, unit: str = "", *, enabled: bool = True) -> Iterator[T]:
    """The pieces one by one, with a bar that moves when the caller asks for the next."""
    with Bar(len(pieces) if isinstance(pieces, Sized) else None, doing, unit, enabled=enabled) as bar:
        for piece in pieces:
            yield piece
            bar()
