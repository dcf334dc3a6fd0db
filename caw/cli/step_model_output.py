"""`caw benchmark --model-of-step`: the launches of a step on a named GPU, worked out without one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from caw.cli.errors import complain
from caw.io.files import check_paths, write_text

MODES = ("plain", "kgw+caw", "exp+caw")
SHAPES = "llama-2-7b"


def model_of_step(
    device: str,
    shapes: str | None,
    modes: Sequence[str] | None,
    batches: Sequence[int] | None,
    prefixes: Sequence[int] | None,
    dtype: str,
    json_file: Path | None,
    weights: str | None = None,
) -> None:
    """Work it out and show it: a table for each batch and prefix, and all launches in the JSON file."""
    from caw.cost import step_model

    check_paths({}, {"--json": json_file})
    found = step_model.run(
        device, modes or MODES, shapes or SHAPES, "float16" if dtype == "auto" else dtype, batches or (1,),
        prefixes or (1024,), weights,
    )  # fmt: skip
    for batch, prefix in dict.fromkeys((row["batch"], row["prefix"]) for row in found["rows"]):
        show([row for row in found["rows"] if (row["batch"], row["prefix"]) == (batch, prefix)], found)
    if json_file is not None:
        write_text(json_file, json.dumps(found, indent=1) + "\n")
        complain(f"wrote {json_file}")


def show(rows: Sequence[dict[str, Any]], found: dict[str, Any]) -> None:
    """The table of one case: a row for each kernel, two columns for each mode, and what they add up to."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    arguments, device, first = found["arguments"], found["device"], rows[0]
    kind = " ".join(filter(None, (arguments["weights"], arguments["dtype"])))
    title = (
        f"{arguments['shapes']}, {kind}, batch {first['batch']}, {first['prefix']} tokens before, on "
        f"{device['name']}: not measured"
    )
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_footer=True)
    table.add_column("kernel", "sum", no_wrap=True)
    for row in rows:
        table.add_column(row["mode"], str(row["launches"]), justify="right")
        table.add_column("us", f"{row['step_us']:.0f}", justify="right")
    for name in dict.fromkeys(name for row in rows for name in row["kernels"]):
        cells = [row["kernels"].get(name) for row in rows]
        table.add_row(name, *(text for cell in cells for text in _cells(cell)))
    console = Console()
    console.print(title, highlight=False)
    console.print(table)
    for row in rows:
        console.print(
            f"{row['mode']}: {row['launches']} launches, {row['bytes'] / 1e9:.3f} GB, which take {row['floor_us']:.0f} "
            f"us at {device['bandwidth'] / 1e12:.2f} TB/s; at least {row['step_us']:.0f} us with "
            f"{arguments['launch_us']} us a launch",
            highlight=False,
        )


def _cells(kernel: dict[str, Any] | None) -> tuple[str, str]:
    return ("", "") if kernel is None else (str(kernel["count"]), f"{kernel['us']:.1f}")
