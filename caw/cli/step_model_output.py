"""`caw benchmark --model-of-step`: the kernel launches of a step on a named GPU, computed without one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from caw.cli.errors import complain
from caw.io.files import check_paths, write_text
from caw.io.progress import Bar

MODES = ("plain", "kgw+caw", "exp+caw")
SHAPES = "llama-2-7b"
WIDEST = 32  # characters of a kernel's name


def model_of_step(
    device: str,
    shapes: str | None,
    modes: Sequence[str] | None,
    batches: Sequence[int] | None,
    prefixes: Sequence[int] | None,
    dtype: str,
    json_file: Path | None,
    weights: str | None = None,
    place: str | None = None,
) -> None:
    """Compute and show the launches: one table per batch size and prefix length; all launches go to the JSON file.

    place: the GPU to measure on; None = the local one, if it is the named one.
    """
    from caw.benchmark import kernel_times, step_model

    check_paths({}, {"--json": json_file})
    found = step_model.run(
        device, modes or MODES, shapes or SHAPES, "float16" if dtype == "auto" else dtype, batches or (1,),
        prefixes or (1024,), weights,
    )  # fmt: skip
    if place is not None or kernel_times.at_hand(device):
        with Bar(None, "starting") as bar:
            kernel_times.measure(found, place, bar.note)
    for batch, prefix in dict.fromkeys((row["batch"], row["prefix"]) for row in found["rows"]):
        show([row for row in found["rows"] if (row["batch"], row["prefix"]) == (batch, prefix)], found)
    if json_file is not None:
        write_text(json_file, json.dumps(found, indent=1) + "\n")
        complain(f"wrote {json_file}")


def show(rows: Sequence[dict[str, Any]], found: dict[str, Any]) -> None:
    """Print one case: a row per kernel, two columns per mode, and the totals."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    arguments, device, first = found["arguments"], found["device"], rows[0]
    kind = " ".join(filter(None, (arguments["weights"], arguments["dtype"])))
    here = found.get("measured_on", {"machine": None})["machine"]
    title = (
        f"{arguments['shapes']}, {kind}, batch {first['batch']}, {first['prefix']} tokens before, on "
        f"{device['name']}: {'not measured' if here is None else 'beside it ' + here.get('gpu', here['cpu'])}"
    )
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_footer=True)
    table.add_column("kernel", "sum", no_wrap=True)
    for row in rows:
        table.add_column(row["mode"], str(row["launches"]), justify="right")
        table.add_column("us", f"{row['step_us']:.0f}", justify="right")
        if "measured" in row:
            sums = row["measured"].get("kernels_us")
            table.add_column("took", "" if sums is None else f"{sums:.0f}", justify="right")
    for name in dict.fromkeys(name for row in rows for name in (*row["kernels"], *_took(row))):
        table.add_row(_short(name), *(text for row in rows for text in _cells(row, name)))
    console = Console()
    console.print(title, highlight=False)
    console.print(table)
    for row in rows:
        console.print(
            f"{row['mode']}: {row['launches']} launches, {row['bytes'] / 1e9:.3f} GB, which take {row['floor_us']:.0f} "
            f"us at {device['bandwidth'] / 1e12:.2f} TB/s; at least {row['step_us']:.0f} us with "
            f"{arguments['launch_us']} us a launch{_said(row)}",
            highlight=False,
        )


def _took(row: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = row.get("measured", {}).get("kernels", {})
    return found


def _cells(row: dict[str, Any], name: str) -> list[str]:
    kernel, took = row["kernels"].get(name), _took(row).get(name)
    cells = ["", ""] if kernel is None else [str(kernel["count"]), f"{kernel['us']:.1f}"]
    return [*cells, "" if took is None else f"{took:.1f}"] if "measured" in row else cells


def _short(name: str) -> str:
    """Shorten torch's template names, which fill lines."""
    return name if len(name) <= WIDEST else name[: WIDEST - 3] + "..."


def _said(row: dict[str, Any]) -> str:
    """Return the measured time of the whole step, as text."""
    found = row.get("measured")
    if found is None or "error" in found:
        return "" if found is None else f"; not measured here: {found['error']}"
    other = "" if found["aligned"] else ", which are not one by one those above"
    return f"; measured: {found['step_us']:.0f} us alone, kernels {found['kernels_us']:.0f} us{other}"
