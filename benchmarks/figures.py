"""Draw the figures of results/*.json again, one SVG beside each file that has one. Nothing is measured.

    python benchmarks/figures.py [--results FOLDER]

generate_*.json (`caw benchmark`); the figures of
evaluation_*/ are drawn by `caw evaluate report`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from caw.benchmark.plot import plot as plot_benchmark

FIGURES: dict[str, Callable[[dict[str, Any], Path], None]] = {
    "generate_*.json": plot_benchmark,
}


def draw(results: Path) -> list[Path]:
    """The files that were written."""
    made = []
    for pattern, plot in FIGURES.items():
        for path in sorted(results.glob(pattern)):
            plot(json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".svg"))
            made.append(path.with_suffix(".svg"))
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path(__file__).resolve().parent / "results")
    for path in draw(parser.parse_args(arguments).results):
        print(path)


if __name__ == "__main__":
    main()
