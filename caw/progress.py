"""Progress bars on stderr, only where somebody looks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextlib.contextmanager
def generation_progress(total: int, *, enabled: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of tokens of each finished text."""
    if not enabled or total < 2 or not sys.stderr.isatty():
        yield lambda tokens: None
        return
    columns = (
        TextColumn("generating"), BarColumn(), MofNCompleteColumn(), TextColumn("texts, {task.fields[tokens]} tokens"),
        TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("generating", total=total, tokens=0)
        tokens_done = 0

        def advance(tokens: int) -> None:
            nonlocal tokens_done
            tokens_done += tokens
            bar.update(task, advance=1, tokens=tokens_done)

        yield advance
