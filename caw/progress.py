"""Progress bars on stderr, only where somebody looks."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

DOING = "generating"


class GenerationProgress:
    """A bar over texts inside its block; call it with the number of tokens of each finished text.

    Nothing is shown for a single text or where stderr is no terminal.
    """

    def __init__(self, total: int, *, enabled: bool) -> None:
        self.total, self.tokens = total, 0
        self.bar: Progress | None = None
        if not enabled or total < 2 or not sys.stderr.isatty():
            return
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("texts, {task.fields[tokens]} tokens"), TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)

    def __enter__(self) -> GenerationProgress:
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task(DOING, total=self.total, tokens=0)
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, tokens: int) -> None:
        self.tokens += tokens
        if self.bar is not None:
            self.bar.update(self.task, advance=1, tokens=self.tokens)

    def note(self, message: str) -> None:
        """Say what is being prepared instead of "generating"; "" = generating again."""
        if self.bar is not None and self.bar.tasks:
            self.bar.update(self.task, description=message or DOING)
