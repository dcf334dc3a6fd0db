"""Draw README's chart: right answers against texts detected, from the published run `evaluation_qwen05target`, and a
guard's from `guard.json`.

    python docs/tools/quality_chart.py [--out docs/quality.svg]

GSM8K questions that no setting was chosen on, Qwen2.5-Coder-0.5B, greedy, three keys; detected at 1 % by the weighted
test. Nothing is measured here.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from caw.io.figures import save_figure
from caw.io.json_files import read_json
from caw_lab.evaluation.metrics.accuracy import wilson

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "benchmarks" / "results" / "evaluation_qwen05target" / "results.json"
# policy of the run -> label, where the label stands beside its point, colour
POINTS = {
    "mid": ("fixed strength (KGW)", (10, -4), "#b3541e"),
    "caw": ("CAW", (-34, -4), "#1b6ac9"),
    "closed-0.01": ("CAW with target", (-104, -4), "#1b6ac9"),
    "found-vote": ("CAW, detectable_at, four votes", (-186, 33), "#1b6ac9"),
}
GREY, GREEN = "#777777", "#2c7a3f"
GUARD = ROOT / "benchmarks" / "results" / "guard.json"


def rows() -> dict[str, dict[str, Any]]:
    """Rows over all keys, and the unmarked one, by policy."""
    return {row["policy"]: row for row in read_json(RUN)["rows"] if row["keys"] in (0, 3)}


def guarded() -> dict[str, Any]:
    """The guard's row at 1 %, of the same questions: the one of the most texts with the guard's defaults."""
    runs = [run for run in read_json(GUARD)["runs"] if run["what"] == "gsm8k" and "0.5b" in run["model"]
            and (run["level"], run["edits"], run["guard"]) == (0.01, 0.0, "{}")]  # fmt: skip
    rows = [row for run in runs for row in run["rows"] if (row["way"], row["texts"]) == ("guard", "all")]
    return max(rows, key=lambda row: int(row["count"]))


def draw() -> Any:
    from matplotlib.figure import Figure

    found = rows()
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes = figure.add_subplot()
    plain = found["none"]
    low, high = (100 * bound for bound in plain["accuracy_ci"])
    axes.axhspan(low, high, color=GREY, alpha=0.12, linewidth=0)
    axes.axhline(100 * plain["accuracy"], color=GREY, linewidth=1)
    axes.annotate("unmarked", (62.5, 100 * plain["accuracy"]), xytext=(0, 4), textcoords="offset points", color=GREY)
    for policy, (label, offset, colour) in POINTS.items():
        row = found[policy]
        x, y = 100 * row["weighted"]["tpr_at_fpr_1e2"], 100 * row["accuracy"]
        bounds = [[y - 100 * row["accuracy_ci"][0]], [100 * row["accuracy_ci"][1] - y]]
        axes.errorbar([x], [y], yerr=bounds, fmt="o", color=colour, capsize=3, markersize=6)
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.6} if abs(offset[1]) > 10 else None
        axes.annotate(label, (x, y), xytext=offset, textcoords="offset points", color=colour, arrowprops=line)
    row = guarded()
    low, high = wilson(round(row["right"] * row["count"]), row["count"])
    x, y = 100 * row["found"], 100 * row["right"]
    axes.errorbar([x], [y], yerr=[[y - 100 * low], [100 * high - y]], fmt="s", color=GREEN, capsize=3, markersize=6)
    axes.annotate('guard, keeps="results"', (x, y), xytext=(-86, 36), textcoords="offset points", color=GREEN)
    axes.set(xlabel="texts detected at a false-positive rate of 1 % (%), with detection weights", ylabel="accuracy (%)")
    axes.set(xlim=(62, 101), ylim=(0, 25))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "quality.svg")
    save_figure(draw(), parser.parse_args(arguments).out)


if __name__ == "__main__":
    main()
