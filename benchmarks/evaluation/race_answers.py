"""Whether a race changes how many sampled answers are right: each question and seed without a mark and under a key.

    caw evaluate run --config qwen05race.yaml
    python race_answers.py runs/qwen05race --output ../results/race_answers.json.xz

Of each pair (question, task) the result has whether each answer is right, its tokens and whether it ended by itself; no
texts. Differences are marked minus unmarked; intervals are of means over questions, with all their pairs. "retried" is
what trying again until a text is found would prefer: of each question with a found text, right answers and length of
its found marked texts over those of all its marked ones.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from caw.benchmark.machine import about

MARGIN = 0.02  # of right answers, within which they are called equivalent
LEVEL = 1e-3  # at which a text is found


Pairs = dict[str, dict[str, tuple[int, ...]]]  # by question and task: right, tokens, ended, without and with the mark


def read(folder: Path) -> Pairs:
    found: dict[str, dict[str, dict[bool, list[int]]]] = {}
    for path in sorted((folder / "cells").glob("*/generations.*.jsonl")):
        marked = not path.parent.name.endswith(".none")
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            task, question = row["id"].split("/", 1)
            own = [int(row["correct"]), len(row["tokens"]), int(row["finish_reason"] != "length")]
            found.setdefault(question, {}).setdefault(task, {})[marked] = own
    pairs = {
        question: {task: (*both[False], *both[True]) for task, both in tasks.items() if len(both) == 2}
        for question, tasks in found.items()
    }
    return {question: tasks for question, tasks in sorted(pairs.items()) if tasks}


def difference(pairs: Pairs, value: Callable[[Sequence[int]], float]) -> tuple[float, float, float]:
    """The mean over pairs and its 95 % interval; the pairs of a question belong together."""
    sums = [(sum(map(value, tasks.values())), len(tasks)) for tasks in pairs.values()]
    count = sum(size for _, size in sums)
    mean = sum(total for total, _ in sums) / count
    spread = sum((total - mean * size) ** 2 for total, size in sums)
    error = 1.96 * math.sqrt(spread * len(sums) / (len(sums) - 1)) / count
    return mean, mean - error, mean + error


def summary(pairs: Pairs) -> dict[str, Any]:
    rows = [row for tasks in pairs.values() for row in tasks.values()]
    length = statistics.mean(row[1] for row in rows)
    gain = {
        "right": difference(pairs, lambda row: row[3] - row[0]),
        "length": difference(pairs, lambda row: (row[4] - row[1]) / length),
        "ended": difference(pairs, lambda row: row[5] - row[2]),
    }
    return {
        "questions": len(pairs),
        "pairs": len(rows),
        "right": [statistics.mean(row[place] for row in rows) for place in (0, 3)],
        "tokens": [statistics.mean(row[place] for row in rows) for place in (1, 4)],
        **{f"more {name}": [round(each, 5) for each in ends] for name, ends in gain.items()},
        "equivalent": max(map(abs, gain["right"][1:])) <= MARGIN,
        "margin": MARGIN,
    }


def preferred(pairs: Pairs, found: set[tuple[str, str]]) -> dict[str, Any]:
    """Which marked texts a test prefers, question by question; found: those detected, as (question, task)."""
    right, longer = list[float](), list[float]()
    for question, tasks in pairs.items():
        own = [row for task, row in tasks.items() if (question, task) in found]
        if own:
            answers, tokens = (
                [statistics.mean(row[at] for row in rows) for rows in (own, tasks.values())] for at in (3, 4)
            )
            right.append(answers[0] - answers[1])
            longer.append(tokens[0] / tokens[1] - 1)
    said: dict[str, Any] = {"level": LEVEL, "found": len(found), "questions": len(right)}
    for name, values in (("right", right), ("length", longer)):
        mean, error = statistics.mean(values), 1.96 * statistics.stdev(values) / math.sqrt(len(values))
        said[f"more {name}"] = [round(each, 5) for each in (mean, mean - error, mean + error)]
    return said


def detected(folder: Path) -> set[tuple[str, str]]:
    """(question, task) of the marked texts that the run's scores find."""
    found = set()
    for line in (folder / "scores.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["label"] == 1 and row["attack"] == "none" and row["p_value"] <= LEVEL:
            task, question = row["id"].split("/", 1)
            found.add((question, task))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    pairs = read(asked.run)
    said = {**summary(pairs), "retried": preferred(pairs, detected(asked.run))}
    print(json.dumps(said, indent=1))
    if asked.output is not None:
        texts = [[question, task, *row] for question, tasks in pairs.items() for task, row in tasks.items()]
        whole = {**about(), **said, "rows": texts}
        asked.output.write_bytes(lzma.compress(json.dumps(whole, separators=(",", ":")).encode(), preset=9))


if __name__ == "__main__":
    main()
