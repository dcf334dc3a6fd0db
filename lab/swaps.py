"""Can the harm of a swap be foreseen, and better than by entropy? What `caw train-evaluator --self` measured, by what
counts as harm, by what is read, and by what learns. AUROC cross-validated over prompts, with intervals over prompts.

    caw train-evaluator --model MODEL --self --positions FOLDER --output own.safetensors
    python lab/swaps.py --positions FOLDER --json swaps.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from caw.evaluator import FeatureSpec
from caw.evaluator.token_classes import CLASSES
from caw_lab.training.metrics import auroc, document_interval, gain_interval
from caw_lab.training.pipeline import table_for
from caw_lab.training.positions import Positions
from caw_lab.training.self_training import POSITIVE
from caw_lab.training.settings import TrainSettings
from caw_lab.training.stored_swaps import MADE_FROM, SWAPS
from caw_lab.training.train import fit, predict

FOLDS = 5
PENALTY = 0.01  # scikit-learn's C
SPEC = FeatureSpec(1, 1, transform="log", classes=len(CLASSES), line_ends=True)
READ = {
    "all three positions": SPEC,
    "positions i and i+1": replace(SPEC, previous=0),
    "position i": replace(SPEC, previous=0, next=0),
    "all three, without token classes": replace(SPEC, classes=0, line_ends=False),
    "all three, 10 probabilities of each": replace(SPEC, k=10),
    "all three, gap instead of log": replace(SPEC, transform="gap"),
}
Scores = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # of rows to learn from, of rows to score


def opened(folder: Path) -> tuple[Positions, np.ndarray, np.ndarray]:
    """A position for each swap, its token's number, and the nats that each following token loses, [n, horizon]."""
    positions, horizon = Positions.open(folder), json.loads((folder / MADE_FROM).read_text())["swaps"]["horizon"]
    lines = [json.loads(line) for line in (folder / SWAPS).read_text().splitlines()]
    lengths = np.bincount(np.asarray(positions.arrays["document"]), minlength=len(lines))
    firsts = np.concatenate([[0], np.cumsum(lengths)])
    token = np.concatenate([np.asarray(line["place"], int) + firsts[line["id"]] for line in lines])
    falls = np.concatenate([np.asarray(line["falls"]).reshape(-1, horizon) for line in lines])
    return positions.only(token, np.zeros(len(token), bool)), token, falls


def labels_of(token: np.ndarray, falls: np.ndarray) -> dict[str, np.ndarray]:
    """What may count as harm, nats [n]."""
    whole = falls.sum(1)
    _, place = np.unique(token, return_inverse=True)
    of_place = np.bincount(place, whole) / np.bincount(place)
    shorter = {f"at the next {_tokens(n)}": falls[:, :n].sum(1) for n in (1, 8) if n < falls.shape[1]}
    later = {f"behind the next {_tokens(n)}": falls[:, n:].sum(1) for n in (1, 4) if n < falls.shape[1]}
    return {"all": whole, **shorter, **later, "the mean over the place's swaps": of_place[place]}


def _tokens(count: int) -> str:
    return "token" if count == 1 else f"{count} tokens"


def crossed(positions: Positions, learn: Scores) -> np.ndarray:
    """Scores [n] of swaps of prompts that were not learnt from."""
    score, every = np.zeros(len(positions)), np.arange(len(positions))
    for train, test in GroupKFold(FOLDS).split(every, groups=positions.group):
        score[test] = learn(train, test, positions.key[train])
    return score


def classifier(x: np.ndarray, make: Callable[[], Any]) -> Scores:
    return lambda train, test, key: make().fit(x[train], key).predict_proba(x[test])[:, 1]


def line(x: np.ndarray) -> Scores:
    def make() -> Any:
        return make_pipeline(StandardScaler(), LogisticRegression(C=PENALTY, max_iter=5000))

    return classifier(x, make)


def trees(x: np.ndarray) -> Scores:
    return classifier(x, lambda: HistGradientBoostingClassifier(max_depth=3, learning_rate=0.05, random_state=0))


def of_harm(x: np.ndarray, harm: np.ndarray) -> Scores:
    """A regression of harm itself instead of its highest decile."""

    def learn(train: np.ndarray, test: np.ndarray, key: np.ndarray) -> np.ndarray:
        fitted = make_pipeline(StandardScaler(), Ridge(len(train))).fit(x[train], harm[train])
        return np.asarray(fitted.predict(x[test]))

    return learn


def network(x: np.ndarray, groups: np.ndarray, table: torch.Tensor) -> Scores:
    """The evaluator's own network; a sixth of the prompts to learn from stops it."""

    def learn(train: np.ndarray, test: np.ndarray, key: np.ndarray) -> np.ndarray:
        stops = np.isin(groups[train], np.unique(groups[train])[::6])
        features, labels = torch.from_numpy(x).float(), torch.from_numpy(key).float()
        made, _ = fit(
            features[train[~stops]], labels[~stops], features[train[stops]], labels[stops], SPEC, TrainSettings(), table
        )
        return predict(made, features[test])

    return learn


def row(positions: Positions, score: np.ndarray, entropy: np.ndarray) -> dict[str, Any]:
    every = np.arange(len(positions))
    return {
        "auroc": round(auroc(positions.key, score), 4), "auroc_ci": document_interval(positions, score, every),
        "gain_over_entropy_ci": gain_interval(positions, score, entropy, every),
    }  # fmt: skip


def measure(folder: Path) -> dict[str, Any]:
    bare, token, falls = opened(folder)
    every, table = np.arange(len(bare)), table_for(bare.meta["model"], bare, line_ends=True)
    features = {}
    for name, spec in READ.items():
        features[name] = bare.features(spec, every, table if spec.classes else None).double().numpy()
    first = features["all three positions"]
    by_label, rest = {}, {}
    for name, harm in labels_of(token, falls).items():
        positions = bare.only(every, harm > np.quantile(harm, 1 - POSITIVE))
        minus = positions.baselines()["entropy"]
        # whichever way it tells more, which favours it a little
        entropy = minus if auroc(positions.key, minus) >= 0.5 else -minus
        of_line = row(positions, crossed(positions, line(first)), entropy)
        by_label[name] = {"entropy": row(positions, entropy, entropy), "line": of_line}
        if name == "all":
            by_read = {n: row(positions, crossed(positions, line(x)), entropy) for n, x in features.items()}
            learners = {
                "trees": trees(first), "line of harm itself": of_harm(first, harm),
                "network": network(first, positions.group, table),
            }  # fmt: skip
            by_learner = {n: row(positions, crossed(positions, learn), entropy) for n, learn in learners.items()}
            rest = {"by_what_is_read": by_read, "by_learner": by_learner}
    harm = falls.sum(1)
    return {
        "model": bare.meta["model"], "made_from": json.loads((folder / MADE_FROM).read_text())["swaps"],
        "prompts": len(np.unique(bare.group)), "swaps": len(bare),
        "harm_quantiles": {str(q): round(float(np.quantile(harm, q)), 2) for q in (0.1, 0.5, 0.9)},
        "by_label": by_label, **rest,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    result = {**measure(args.positions), "command": "python lab/swaps.py --positions FOLDER --json OUT"}
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    for part in ("by_label", "by_what_is_read", "by_learner"):
        for name, found in result[part].items():
            print(part, name, found)


if __name__ == "__main__":
    main()
