"""Detection in published runs by length of text, and per token: is a policy found sooner, or only writing more?

    python by_length.py ../results/evaluation_qwen05 --watermark kgw [--fpr 0.01]

Reads the scores of a copy that `caw evaluate run --publish` made. A line for each policy: texts, median tokens
counted, mean of z over their root, and the share found among the texts of each range of lengths (in tokens).
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from caw_lab.evaluation.store import Score, Store

EDGES = (0, 80, 140, 1 << 30)


def by_policy(folder: Path, watermark: str) -> dict[str, list[Score]]:
    """Scores of the marked texts themselves, not attacked, by policy and key."""
    found: dict[str, list[Score]] = defaultdict(list)
    for score in Store(folder).read_scores():
        if score.attack == "none" and score.label == 1 and score.watermark == watermark:
            found[score.cell.split(f".{watermark}.", 1)[1]].append(score)
    return found


def row(scores: list[Score], fpr: float) -> list[str]:
    per_token = statistics.fmean(s.z / max(1, s.num_scored) ** 0.5 for s in scores)
    cells = [str(len(scores)), f"{statistics.median(s.num_scored for s in scores):g}", f"{per_token:.2f}"]
    for low, high in pairwise(EDGES):
        within = [s.p_value <= fpr for s in scores if low <= s.num_tokens < high]
        cells.append(f"{statistics.fmean(within):.2f} of {len(within)}" if within else "")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--watermark", default="kgw")
    parser.add_argument("--fpr", type=float, default=0.01)
    arguments = parser.parse_args()
    ranges = [f"{low} - {high - 1 if high < 1 << 30 else ''}" for low, high in pairwise(EDGES)]
    print("| policy | texts | tokens counted | z per root of them |", " | ".join(ranges), "|")
    print("| --- " * (4 + len(ranges)) + "|")
    for policy, scores in sorted(by_policy(arguments.folder, arguments.watermark).items()):
        print("|", policy, "|", " | ".join(row(scores, arguments.fpr)), "|")


if __name__ == "__main__":
    main()
