"""How many of a run's texts are still found after each attack, gathered from the runs *words.yaml (README.md).

    python attacked.py runs/qwen05words --output ../results/attacked_qwen05.json.xz

The file has a p-value for each text, key and attack, alone and with weights per token, and no texts. Values have 3
digits; one that this would carry over the level is kept whole. `rows` makes of it what the documentation shows.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from everyday import short

from caw.io.json_files import compress, read_json, replace_file
from caw_lab.evaluation.config_file import read_config
from caw_lab.evaluation.metrics.accuracy import wilson
from caw_lab.evaluation.metrics.scoring import MODEL, Scorer
from caw_lab.evaluation.store import Score, Store

LEVEL = 1e-2
PLAIN = "none"  # the attack that is none, and the policy of unmarked texts


def gather(folder: Path) -> dict[str, Any]:
    """Everything that is published of a run's folder; cells without texts are left out."""
    config, store = read_config(folder / "config.yaml"), Store(folder)
    scorer, scores = Scorer(config, store), dict[str, list[Score]]()
    for score in scorer.every_score():
        if score.source == MODEL:
            scores.setdefault(score.cell, []).append(score)
    plans = {plan.name: plan for plan in config.plan()}
    marks = {(plan.watermark, plan.key) for plan in plans.values() if plan.watermark}
    if len(marks) != 1:
        raise ValueError(f"expected a run under one mark and key, found {sorted(marks)}; gather runs one by one")
    found = {name: scorer.answers(plan) for name, plan in plans.items()}
    made = {name: cell for name, cell in found.items() if cell.answers}
    return {
        "attacks": read_json(folder / "attacks.json") or {},
        "runs": {run: store.run(run) for run in sorted({run for cell in made.values() for run in cell.runs})},
        "cells": {
            name: {
                "manifest": dict(cell.manifest),
                "correct": [answer.correct for answer in cell.answers],
                "attacked": _by_attack(scores.get(name, [])),
            }
            for name, cell in made.items()
        },
    }


def _by_attack(scores: Sequence[Score]) -> dict[str, Any]:
    """By attack: p-values, those with weights, and the mean share of words that it changed."""
    found: dict[str, list[Score]] = {}
    for score in scores:
        found.setdefault(score.attack, []).append(score)
    return {
        attack: {
            "p": [short(score.p_value, LEVEL) for score in of],
            "weighted": [short(score.p_weighted, LEVEL) for score in of],
            "edit_rate": short(float(np.mean([score.edit_rate for score in of]))),
        }
        for attack, of in sorted(found.items())
    }


def rows(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each cell: policy, texts, share of right answers, and by attack how many are found.

    attacked: by attack (share found at `LEVEL`, low, high), the same with weights, and the share of words changed; of
    unmarked texts these are false alarms. Intervals are Wilson's, 95 %.
    """
    for cell in found["cells"].values():
        correct = [value for value in cell["correct"] if value is not None]
        yield {
            "model": cell["manifest"]["model"],
            "policy": cell["manifest"]["policy"] or PLAIN,
            "texts": len(cell["correct"]),
            "right": float(np.mean(correct)) if correct else None,
            "attacked": {
                attack: (_share(of["p"]), _share(of["weighted"]), of["edit_rate"])
                for attack, of in cell["attacked"].items()
            },
        }


def _share(p_values: Sequence[float | None]) -> tuple[float, float, float] | None:
    known = [value <= LEVEL for value in p_values if value is not None]
    return (float(np.mean(known)), *wilson(sum(known), len(known))) if known else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="output of `caw evaluate run`, attacked")
    parser.add_argument("--output", type=Path, required=True, help="a .json.xz file")
    given = parser.parse_args()
    found = {"command": shlex.join(["python", "attacked.py", *sys.argv[1:]]), **gather(given.folder)}
    replace_file(given.output, compress(json.dumps(found, separators=(",", ":")).encode() + b"\n"))
    for row in rows(found):
        shares = {
            attack: " ".join(f"{part[0]:.2f}" if part else "-" for part in of[:2])
            for attack, of in row["attacked"].items()
        }
        print(f"{row['policy']:14} {row['texts']} texts, found and with weights:", shares)
    print(f"{given.output}: {given.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
