"""`caw benchmark --steps`: times of captured steps alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from caw.cli.errors import complain
from caw.io.files import check_paths, write_text
from caw.io.progress import Bar

SHAPES = "llama-2-7b"
ROUNDS = 32  # of eight steps each


def time_steps(
    cases: Sequence[Any],
    rounds: int | None,
    model: str,
    shapes: str | None,
    dtype: str,
    device: str | None,
    seconds: float | None,
    json_file: Path | None,
    weights: str | None = None,
) -> None:
    """Measure and show one table per batch size and prefix length, each as soon as it is done.

    cases: modes, batch sizes and prefixes, None if not given. model: unused, random weights take as long. seconds:
    start no further case after this time.
    """
    from caw.benchmark import step_times

    check_paths({}, {"--json": json_file})
    modes, batches, prefixes = cases
    settings = step_times.StepSettings(
        shapes or SHAPES, "float16" if dtype == "auto" else dtype, device, tuple(modes or step_times.MODES),
        tuple(batches or (1,)), tuple(prefixes or (1024,)), rounds or ROUNDS, seconds, weights,
    )  # fmt: skip

    def saved(found: dict[str, Any]) -> None:
        if json_file is not None:
            write_text(json_file, json.dumps(found, indent=1) + "\n")
        last = found["rows"][-1]
        case = last["batch"], last["prefix"]
        show([row for row in found["rows"] if (row["batch"], row["prefix"]) == case], found)

    with Bar(None, "starting") as bar:
        found = step_times.run(settings, bar.note, saved)
    for line in summary(found):
        print(line)
    if not found["complete"]:
        complain(f"remaining cases skipped after {seconds:.0f} seconds")
    if json_file is not None:
        complain(f"wrote {json_file}")


def summary(found: dict[str, Any]) -> list[str]:
    """Describe each case in one line."""
    lines = []
    for batch, prefix in dict.fromkeys((row["batch"], row["prefix"]) for row in found["rows"]):
        parts = []
        for row in found["rows"]:
            if (row["batch"], row["prefix"]) != (batch, prefix) or "error" in row:
                continue
            share = f" ({row['share_of_bandwidth']:.0%} of bandwidth)" if row["mode"] == "plain" else ""
            ratio = f"{row['ratio']['median']:.4f}" if row["ratio"] and row["mode"] != "plain" else ""
            parts.append(f"{row['mode']} {ratio or format(row['step_us']['median'], '.1f') + ' us'}{share}")
        lines.append(f"batch {batch}, prefix {prefix}: {', '.join(parts)}")
    return lines


def show(rows: Sequence[dict[str, Any]], found: dict[str, Any]) -> None:
    """Print the table of one case."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    title = (
        f"{found['arguments']['shapes']}, {found['arguments']['dtype']}, batch {rows[0]['batch']}, "
        f"{rows[0]['prefix']} tokens of context; {found['clock']}"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("mode", no_wrap=True)
    for name in ("us a step", "of plain", "of bandwidth", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    wrong = []
    for row in rows:
        if "error" in row:
            wrong.append(f"{row['mode']} does not work here: {row['error']}")
            continue
        ratio, share, memory = row["ratio"], row["share_of_bandwidth"], row["memory_ratio"]
        table.add_row(
            row["mode"],
            f"{row['step_us']['median']:.1f}",
            f"{ratio['median']:.4f} ({ratio['low']:.3f}-{ratio['high']:.3f})" if ratio else "",
            f"{share:.0%}" if share is not None else "",
            f"{memory:.4f}" if memory is not None else "",
        )
    table.caption, table.caption_justify = "\n".join(wrong), "left"
    Console().print(table)
