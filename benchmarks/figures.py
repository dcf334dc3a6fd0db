"""Draw the SVG beside each results/*.json again: python benchmarks/figures.py [--results FOLDER]"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from caw.io.figures import save_figure

FIGURES = ("generate_cpu_float32",)


def draw(results: Path) -> list[Path]:
    """The files that were written."""
    made = [results / f"{name}.svg" for name in FIGURES]
    for path in made:
        plot(json.loads(path.with_suffix(".json").read_text(encoding="utf-8")), path)
    return made


def plot(found: Mapping[str, Any], path: Path) -> None:
    """Time per token and peak memory over plain, of the first case of a file of `caw benchmark`."""
    rows = [row for row in found["rows"] if "error" not in row]
    case = (rows[0]["batch"], rows[0]["prompt"])
    shown = [row for row in rows if (row["batch"], row["prompt"]) == case]
    figure = Figure(figsize=(8.4, 4.8), layout="constrained")
    axes = figure.add_subplot()
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
    arguments, machine = found["arguments"], found["machine"]
    subject = arguments["shapes"] or arguments["model"]
    figure.suptitle(f"{subject}, {arguments['dtype']}, {machine.get('gpu') or machine['cpu']}", fontsize=9)
    save_figure(figure, path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path(__file__).resolve().parent / "results")
    for path in draw(parser.parse_args(arguments).results):
        print(path)


if __name__ == "__main__":
    main()
