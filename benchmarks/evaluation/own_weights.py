"""A run's comparisons with weights per token that each open policy gets from its own texts, not one table for all.

    caw evaluate run --config qwen05practice.yaml
    python own_weights.py runs/qwen05target --practice runs/qwen05practice \\
        --output ../results/own_weights_qwen05target.json

The practice run has texts of train questions, marked by the same policies under other keys. A policy that it lacks (one
with a target or `detectable_at`, which was tested with the config's table while it was written) keeps the config's
table. Both runs' texts are needed, and are not published.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from caw.detection import Detector
from caw.detection.weight_estimates import estimate_weights
from caw.detection.weights import TokenWeights
from caw.io.json_files import replace_file
from caw.watermarks import Watermark
from caw_lab.evaluation.config import CellPlan
from caw_lab.evaluation.config_file import read_config
from caw_lab.evaluation.metrics.scoring import MODEL, Scorer
from caw_lab.evaluation.provenance import run_record
from caw_lab.evaluation.results import Results
from caw_lab.evaluation.store import Score, Store

MEASURES = ("weighted_tpr_at_fpr_1e2", "weighted_tpr_at_fpr_1e3")


def marked(scorer: Scorer) -> list[CellPlan]:
    """The cells with marked texts, each once."""
    plans = {plan.name: plan for plan in scorer.config.plan() if plan.policy is not None}
    return [plan for plan in plans.values() if scorer.generations(plan)]


def tables(practice: Scorer) -> dict[str, TokenWeights]:
    """Weights per token of each policy of the practice run."""
    texts: dict[str, dict[Watermark, list[str]]] = {}
    for plan in marked(practice):
        mark = practice.detector(plan).watermark
        texts.setdefault(str(plan.policy), {})[mark] = [g.truncated_text for g in practice.generations(plan)]
    (tokenizer,) = practice.tokenizers.values()
    return {policy: estimate_weights(of, tokenizer, len(tokenizer)) for policy, of in texts.items()}


@dataclass
class OwnScorer(Scorer):
    """A run as `Results` reads it, with second readings by each policy's own table."""

    own: dict[str, TokenWeights] = field(default_factory=dict)

    def every_score(self) -> list[Score]:
        p_and_z: dict[tuple[str, str], tuple[float, float]] = {}
        for plan in marked(self):
            if plan.policy in self.own:
                detector = replace(self.detector(plan), weights=self.own[plan.policy])
                p_and_z |= {(plan.name, name): value for name, value in _read(detector, self, plan).items()}
        found = []
        for score in super().every_score():
            again = p_and_z.get((score.cell, score.id)) if score.source == MODEL and score.attack == "none" else None
            found.append(score if again is None else replace(score, p_weighted=again[0], z_weighted=again[1]))
        return found


def _read(detector: Detector, scorer: Scorer, plan: CellPlan) -> dict[str, tuple[float, float]]:
    texts = scorer.generations(plan)
    results = detector([g.truncated_text for g in texts])
    assert isinstance(results, list)
    return {g.id: (r.p_value, r.z_score) for g, r in zip(texts, results, strict=True)}


def summary(scorer: Scorer) -> dict[str, Any]:
    """By second readings: shares found over all keys, each policy over the fixed strength that is found as often."""
    results = Results(scorer, scorer.config.plan()).as_dict()
    rows = {row["policy"]: row for row in results["rows"] if "weighted" in row}  # the last one has all keys
    return {
        "found": {policy: {"texts": row["texts"], **_rates(row["weighted"])} for policy, row in rows.items()},
        "equal_detection": [row for row in results["equal_detection"] if row["measure"] in MEASURES],
    }


def _rates(weighted: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in weighted.items() if name.startswith("tpr_at_fpr")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("--practice", type=Path, required=True, help="folder of the practice run")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args()
    practice = Scorer(read_config(args.practice / "config.yaml"), Store(args.practice))
    own = tables(practice)
    config = read_config(args.run / "config.yaml")
    made = {
        "practice": {p: {k: t.provenance[k] for k in ("key_ids", "tokens", "mean_by_kind")} for p, t in own.items()},
        "one table": summary(Scorer(config, Store(args.run))),
        "own tables": summary(OwnScorer(config, Store(args.run), own=own)),
        "run": run_record("python own_weights.py"),
    }
    replace_file(args.output, json.dumps(made, separators=(",", ":")).encode() + b"\n")


if __name__ == "__main__":
    main()
