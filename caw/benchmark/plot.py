"""The paper's bar chart of time and memory, and overhead against batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from caw.io.figures import save_figure
from caw.requirements import require

LOOK_AHEAD = "+caw"


def plot(found: Mapping[str, Any], path: str | Path) -> None:
    """A figure of a run as a file: time and memory of the first case's modes over plain; where there are several batch
    sizes, their overhead too.

    Raises ImportError where matplotlib is missing.
    """
    require("matplotlib", "the plot of a benchmark")
    from matplotlib.figure import Figure

    rows = [row for row in found["rows"] if "error" not in row]
    batches = sorted({row["batch"] for row in rows})
    panels = ["bars", *(["batch"] if len(batches) > 1 else [])]
    figure = Figure(figsize=(4.2 + 4.2 * len(panels), 4.8), layout="constrained")
    grid = figure.add_gridspec(1, len(panels), width_ratios=[2, *[1] * (len(panels) - 1)])
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(grid[0, place])
        {"bars": bars, "batch": by_batch}[panel](axes, rows)
    arguments = found["arguments"]
    figure.suptitle(
        f"{arguments['shapes'] or arguments['model']}, {arguments['dtype']}, "
        f"{found['machine'].get('gpu') or found['machine']['cpu']}",
        fontsize=9,
    )
    save_figure(figure, path)


def bars(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Time per token and peak memory of the first case."""
    case = (rows[0]["batch"], rows[0]["prompt"])
    shown = [row for row in rows if (row["batch"], row["prompt"]) == case]
    names, places = [row["mode"] for row in shown], range(len(shown))
    middle = [row["ratio"]["median"] for row in shown]
    spread = [
        [max(0.0, m - row["ratio"]["low"]) for m, row in zip(middle, shown, strict=True)],
        [max(0.0, row["ratio"]["high"] - m) for m, row in zip(middle, shown, strict=True)],
    ]
    axes.bar([p - 0.2 for p in places], middle, 0.4, yerr=spread, capsize=2, label="time per token")
    if any("peak_ratio" in row for row in shown):
        axes.bar([p + 0.2 for p in places], [row.get("peak_ratio", 0.0) for row in shown], 0.4, label="peak memory")
    axes.axhline(1.0, color="black", lw=0.8)
    axes.set_xticks(list(places), names, rotation=60, ha="right", fontsize=7)
    axes.set(ylabel="relative to plain decoding", title=f"batch {case[0]}, prompt of {case[1]} tokens")
    axes.legend(fontsize=8)


def by_batch(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Overhead of the look-ahead against the batch size, a line for each mode and prompt length."""
    prompts = sorted({row["prompt"] for row in rows})
    for mode in dict.fromkeys(row["mode"] for row in rows if row["mode"].endswith(LOOK_AHEAD)):
        for prompt in prompts:
            line = [r for r in rows if r["mode"] == mode and r["prompt"] == prompt]
            label = mode if len(prompts) == 1 else f"{mode}, prompt {prompt}"
            _line(axes, [r["batch"] for r in line], line, label)
    axes.set(xlabel="batch size", ylabel="time per token over plain, %", xscale="log")
    _ticks(axes, sorted({row["batch"] for row in rows}))


def _line(axes: Any, x: Sequence[int], rows: Sequence[Mapping[str, Any]], label: str) -> None:
    percent = [[100 * (row["ratio"][which] - 1) for row in rows] for which in ("median", "low", "high")]
    axes.plot(x, percent[0], marker="o", label=label)
    axes.fill_between(x, percent[1], percent[2], alpha=0.2)


def _ticks(axes: Any, values: Sequence[int]) -> None:
    axes.axhline(0.0, color="black", lw=0.8)
    axes.set_xticks(values, [str(v) for v in values])
    axes.minorticks_off()
    axes.legend(fontsize=7)
