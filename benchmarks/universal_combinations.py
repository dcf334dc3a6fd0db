"""Combinations of what `bench_universal.py labels` measured: which of them foresees what becomes of a change?

Key segments, harm and healing, each alone and together; and healing where the first tokens behind the change are known.
Every figure is the mean AUROC over models of a kind of text, from scores of other documents ("seen") or of other
families ("unseen"). A mean counts models alike.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from universal_labels import DEPTH, KINDS, SUBJECTS, answers_path, around, changes_of
from universal_training import KEY_DATA, SPEC, provenance_of

from caw.evaluator import Evaluator
from caw.evaluator.token_classes import class_table_of
from caw.models import load_tokenizer
from caw_lab.training.fit_damage import PENALTIES, regression
from caw_lab.training.universal import Examples, train_line

HARMFUL = 0.1  # share of the changes of a set that count as harmful, those of the greatest harm
KEY = "universal"
PENALTY = 0.01  # that was best on changes of other families
DEPTHS = (0, 1, 2, 4, 8)
RESAMPLES = 300
WIDTH = 128  # of a merged network: one that kernels are compiled for
JOINED = {
    "key + harm": ("key", "harm"), "key + healing": ("key", "healing"), "harm + healing": ("harm", "healing"),
    "all three": ("key", "harm", "healing"),
}  # fmt: skip
SUMMED = ", standardised"  # of a score that is a sum of log odds, as the evaluators of `combine` are


@dataclass(frozen=True)
class Changes:
    """Changes of one model and kind of text.

    of: inputs of an evaluator; key: whether the text does not heal. targets: bool [n] by name, and which are known.
    ahead: see `universal_labels.ahead_of`. length: tokens of the rollout. keys: log odds of key segments, by an
    evaluator that saw the family, and by one that did not.
    """

    of: Examples
    targets: dict[str, tuple[np.ndarray, np.ndarray]]
    ahead: np.ndarray
    length: np.ndarray
    keys: tuple[np.ndarray, np.ndarray]


def changes_in(folder: Path, models: Path) -> list[Changes]:
    found = []
    for name, subject in SUBJECTS.items():
        for kind in KINDS:
            parts = changes_of(folder, name, kind)
            if not parts:
                continue
            tokenizer = load_tokenizer(subject.path(models))
            rows = [around(part)[:3] for part in parts]

            def inputs(evaluator: Any, rows: Any = rows, tokenizer: Any = tokenizer) -> torch.Tensor:
                spec = getattr(evaluator, "spec", evaluator)
                table = class_table_of(tokenizer, spec.line_ends) if spec.classes else None
                return torch.cat([spec.assemble(each, table) for each in rows])

            names = np.concatenate([part["names"][part["document"]] for part in parts])
            heals, harm = (np.concatenate([part[column] for part in parts]) for column in ("same", "harm"))
            every = np.ones(len(heals), bool)
            targets = {"does not heal": (~heals, every), "harmful": (harm > np.quantile(harm, 1 - HARMFUL), every)}
            files = [answers_path(Path(part.zip.filename)) for part in parts]
            if all(path.exists() for path in files):
                other = np.concatenate([np.load(path)["other"] for path in files])
                targets["other answer"] = (other == 1, other >= 0)
            other_family = {"smollm2": "qwen2.5-coder-0.5b", "qwen2.5": "smollm2-135m"}.get(subject.family, KEY)
            keys = [log_odds(evaluator, inputs(evaluator)) for evaluator in map(Evaluator.load, (KEY, other_family))]
            examples = Examples(name, subject.family, kind, inputs(SPEC), ~heals, names)
            ahead, length = (np.concatenate([part[column] for part in parts]) for column in ("ahead", "length"))
            found.append(Changes(examples, targets, ahead, length, (keys[0], keys[1])))
    return found


def log_odds(evaluator: Evaluator, features: torch.Tensor) -> np.ndarray:
    with torch.inference_mode():
        return np.asarray(evaluator.logits(features).double())


# ---- scores ----------------------------------------------------------------------------------------------------------
Scores = dict[str, list[tuple[np.ndarray, np.ndarray]]]  # by name: (seen, unseen) of each set


def scores_of(sets: Sequence[Changes]) -> tuple[Scores, dict[str, Evaluator]]:
    """Key segments, harm and healing, alone, as means of ranks and as sums of standardised scores; the evaluators."""
    healing, healed, _ = train_line([each.of for each in sets], SPEC)
    harm, harmed, _ = train_line([replace(each.of, key=each.targets["harmful"][0]) for each in sets], SPEC)
    found: Scores = {
        "key": [each.keys for each in sets],
        "harm": [(each.seen, each.unseen) for each in harmed],
        "healing": [(each.seen, each.unseen) for each in healed],
    }
    for name, parts in JOINED.items():
        found[name] = [
            (sum(ranks(found[part][at][0]) for part in parts), sum(ranks(found[part][at][1]) for part in parts))
            for at in range(len(sets))
        ]
        found[name + SUMMED] = summed([found[part] for part in parts])
    return found, {"key": Evaluator.load(KEY), "harm": harm, "healing": healing}


def summed(parts: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Sums of several scores, each over its deviation in all sets together."""
    made = []
    for which in (0, 1):
        deviations = [np.concatenate([each[which] for each in part]).std() for part in parts]
        made.append([
            np.sum([part[at][which] / d for part, d in zip(parts, deviations, strict=True)], axis=0)
            for at in range(len(parts[0]))
        ])  # fmt: skip
    return list(zip(*made, strict=True))


def ranks(score: np.ndarray) -> np.ndarray:
    """Places in ascending order, from -1 to 1."""
    return 2 * np.argsort(np.argsort(score, kind="stable"), kind="stable") / max(len(score) - 1, 1) - 1


def joint(
    sets: Sequence[Changes], scores: Scores, parts: Sequence[str], target: str
) -> list[tuple[np.ndarray, np.ndarray] | None]:
    """A regression on the ranks of several scores, fitted to a target; None where a set does not have it."""
    some = [at for at, each in enumerate(sets) if target in each.targets]
    columns = [[np.stack([ranks(scores[part][at][which]) for part in parts], 1) for at in some] for which in (0, 1)]
    key = [sets[at].targets[target][0] for at in some]
    known = [sets[at].targets[target][1] for at in some]
    folds, families = [sets[at].of.fold for at in some], [sets[at].of.family for at in some]
    seen = crossed(columns[0], key, known, folds, 1.0)
    apart = [np.full(len(each), families.index(family)) for each, family in zip(key, families, strict=True)]
    unseen = crossed(columns[1], key, known, apart, 1.0) if len(set(families)) > 1 else seen
    made: list[tuple[np.ndarray, np.ndarray] | None] = [None] * len(sets)
    for place, at in enumerate(some):
        made[at] = (seen[place], unseen[place])
    return made


def crossed(
    columns: Sequence[np.ndarray], key: Sequence[np.ndarray], known: Sequence[np.ndarray], folds: Sequence[np.ndarray],
    penalty: float,
) -> list[np.ndarray]:  # fmt: skip
    """Scores of every set by regressions on the other folds of all sets, which count alike."""
    made = [np.zeros(len(each)) for each in columns]
    most = max(map(len, columns))
    for fold in sorted({int(each) for part in folds for each in np.unique(part)}):
        rows = [
            np.tile(np.flatnonzero((own != fold) & there), max(round(most / len(own)), 1))
            for own, there in zip(folds, known, strict=True)
        ]
        x = np.concatenate([each[some] for each, some in zip(columns, rows, strict=True)])
        y = np.concatenate([each[some] for each, some in zip(key, rows, strict=True)])
        weight, bias = regression(x, y, penalty)
        for each, own, score in zip(columns, folds, made, strict=True):
            score[own == fold] = each[own == fold] @ weight + bias
    return made


# ---- figures ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Ranked:
    """A set's labels and scores. documents: names."""

    key: np.ndarray
    score: np.ndarray
    documents: np.ndarray

    def auroc(self, rows: np.ndarray) -> float:
        """As `caw_lab.training.metrics.auroc`, which is slower; NaN of one class only."""
        key, score = self.key[rows], self.score[rows]
        others = np.sort(score[~key])
        below = sum(np.searchsorted(others, score[key], side) for side in ("left", "right"))
        return float(np.mean(below) / (2 * len(others))) if key.any() and not key.all() else float("nan")


def mean_auroc(sets: Sequence[Ranked], seed: int = 0) -> list[float]:
    """[mean AUROC over sets, and its 95 % interval]; whole documents are drawn within each set."""
    whole = float(np.mean([each.auroc(np.arange(len(each.key))) for each in sets]))
    rng, drawn = np.random.default_rng(seed), []
    grouped = []
    for each in sets:
        names, group = np.unique(each.documents, return_inverse=True)
        grouped.append([np.flatnonzero(group == number) for number in range(len(names))])
    for _ in range(RESAMPLES):
        values = [
            each.auroc(np.concatenate([rows[n] for n in rng.integers(len(rows), size=len(rows))]))
            for each, rows in zip(sets, grouped, strict=True)
        ]
        drawn.append(float(np.nanmean(values)))
    low, high = np.percentile(drawn, [2.5, 97.5])
    return [round(value, 3) for value in (whole, float(low), float(high))]


def figures(sets: Sequence[Changes], scores: Scores) -> dict[str, Any]:
    """Every score's and joint regression's AUROC by target and kind of text: [seen with its interval, unseen]."""
    rows = []
    targets = sorted(
        {name for each in sets for name in each.targets}, key=("does not heal", "harmful", "other answer").index
    )
    joints = {name: parts for name, parts in JOINED.items() if "key" in parts}
    for name in (*scores, *(f"{name}, regression" for name in joints)):
        row: dict[str, Any] = {"score": name, "auroc": {}}
        for target in targets:
            by_set = scores.get(name) or joint(sets, scores, joints[name.partition(",")[0]], target)
            for kind in KINDS:
                made = []
                for which in (0, 1):
                    some = []
                    for each, found in zip(sets, by_set, strict=True):
                        if target in each.targets and found is not None and each.of.kind == kind:
                            key, known = each.targets[target]
                            some.append(Ranked(key[known], found[which][known], each.of.documents[known]))
                    if some:
                        made.append(mean_auroc(some))
                if made:
                    row["auroc"][f"{target}, {kind}"] = made
        rows.append(row)
    about = [
        {"model": each.of.model, "kind": each.of.kind, "changes": len(each.of.key),
         "documents": len(np.unique(each.of.documents)), "healed": round(float(1 - each.of.key.mean()), 3),
         **({"other answer": round(float(np.mean(each.targets["other answer"][0][each.targets["other answer"][1]])), 3),
             "answers": int(each.targets["other answer"][1].sum())} if "other answer" in each.targets else {})}
        for each in sets
    ]  # fmt: skip
    return {"sets": about, "rows": rows, "safest": safest(sets, scores)}


def safest(sets: Sequence[Changes], scores: Scores) -> list[dict[str, Any]]:
    """Of the fifth of the changes that a score ranks safest, and of all: the share that leaves the answer as it was.

    Means over models: [of documents unseen, of families unseen].
    """
    some = [(each, at) for at, each in enumerate(sets) if "other answer" in each.targets]
    if not some:
        return []

    def kept(name: str, part: int) -> list[float]:
        shares: list[list[float]] = [[], []]
        for each, at in some:
            other, known = each.targets["other answer"]
            for which in (0, 1):
                order = np.argsort(scores[name][at][which][known], kind="stable")
                shares[which].append(float(np.mean(~other[known][order[: len(order) // part]])))
        return [round(float(np.mean(each)), 3) for each in shares]

    named = [("all", next(iter(scores)), 1), *((name, name, 5) for name in scores)]
    return [{"score": said, "kept": kept(name, part)} for said, name, part in named]


def deeper(sets: Sequence[Changes]) -> list[dict[str, Any]]:
    """AUROC of "does not heal" where the first tokens behind the change are read, of changes still open behind them."""
    rows = []
    open_ones = [(each.length - 1 > DEPTH) & np.isfinite(each.ahead).all((1, 2)) for each in sets]
    for depth in DEPTHS:
        columns = [
            np.concatenate([each.of.features.numpy(), each.ahead[:, :depth].reshape(len(each.length), -1)], 1)[some]
            for each, some in zip(sets, open_ones, strict=True)
        ]
        chosen = [each.of.only(some) for each, some in zip(sets, open_ones, strict=True)]
        found = max((ranked(columns, chosen, penalty) for penalty in PENALTIES), key=mean_of_sets)
        row: dict[str, Any] = {"depth": depth, "auroc": {}}
        for kind in KINDS:
            some = [made for made, each in zip(found, sets, strict=True) if each.of.kind == kind]
            if some:
                row["auroc"][kind] = mean_auroc(some)
                row[f"{kind} changes"] = sum(len(each.key) for each in some)
        rows.append(row)
    return rows


def learning(sets: Sequence[Changes], seeds: int = 4) -> list[dict[str, Any]]:
    """AUROC of "does not heal" by the share of the other folds' documents that a regression sees; means over draws."""
    columns, examples, rows = [each.of.features.numpy() for each in sets], [each.of for each in sets], []
    for part in (0.25, 0.5, 1.0):
        found = []
        for seed in range(seeds if part < 1 else 1):
            rng, seen = np.random.default_rng(seed), []
            for each in examples:
                names, place = np.unique(each.documents, return_inverse=True)
                seen.append((rng.permutation(len(names)) < part * len(names))[place])
            found.append(mean_of_sets(ranked(columns, examples, PENALTY, seen)))
        rows.append({"share": part, "auroc": round(float(np.mean(found)), 3)})
    return rows


def ranked(
    columns: Sequence[np.ndarray], sets: Sequence[Examples], penalty: float, seen: Sequence[np.ndarray] | None = None
) -> list[Ranked]:
    """Cross-validated scores of healing. seen: rows that a regression may be fitted to, by set; None = all."""
    key, every = [each.key for each in sets], [np.ones(len(each.key), bool) for each in sets]
    made = crossed(columns, key, seen or every, [each.fold for each in sets], penalty)
    return [Ranked(each.key, score, each.documents) for each, score in zip(sets, made, strict=True)]


def mean_of_sets(made: Sequence[Ranked]) -> float:
    return float(np.mean([each.auroc(np.arange(len(each.key))) for each in made]))


# ---- an evaluator of several -----------------------------------------------------------------------------------------
@torch.no_grad()
def merged(evaluators: Sequence[Evaluator], weights: Sequence[float], bias: float) -> Evaluator:
    """One network whose log odds are a weighted sum of those of universal evaluators of the same spec."""
    first = evaluators[0]
    made = Evaluator(first.spec, WIDTH, universal=True)
    made.mean.copy_(first.mean)
    made.scale.copy_(first.scale)
    for layer in (made.layer1, made.layer2, made.layer3):
        layer.weight.zero_()
        layer.bias.zero_()
    at = 0
    for each, weight in zip(evaluators, weights, strict=True):
        here = slice(at, at + each.hidden)
        made.layer1.weight[here] = each.layer1.weight * (first.scale / each.scale)
        made.layer1.bias[here] = each.layer1.bias + each.layer1.weight @ ((first.mean - each.mean) / each.scale)
        made.layer2.weight[here, here], made.layer2.bias[here] = each.layer2.weight, each.layer2.bias
        made.layer3.weight[0, here] = weight * each.layer3.weight[0]
        made.layer3.bias += weight * each.layer3.bias
        at += each.hidden
    made.layer3.bias += bias
    return made.eval().requires_grad_(False)


def as_strong_as_key(sets: Sequence[Changes], evaluators: dict[str, Evaluator], parts: Sequence[str]) -> Evaluator:
    """The sum of the standardised log odds, with the mean and deviation that those of key segments have."""
    features = torch.cat([each.of.features for each in sets])
    odds = {part: log_odds(evaluators[part], features) for part in ("key", *parts)}
    total = sum((odds[part] - odds[part].mean()) / odds[part].std() for part in parts)
    gain = float(odds["key"].std() / total.std())
    weights = [gain / float(odds[part].std()) for part in parts]
    bias = float(odds["key"].mean()) - sum(w * float(odds[part].mean()) for w, part in zip(weights, parts, strict=True))
    return merged([evaluators[part] for part in parts], weights, bias)


SAID = {
    "key": "key segments of GSM8K's train answers (`universal`)",
    "harm": "the most harmful tenth of the changes that a mark would make",
    "healing": "changes behind which the text does not come back with the same numbers, names and code",
}


def combine(asked: argparse.Namespace) -> None:
    """Write the figures, and the evaluators of all combinations."""
    torch.set_num_threads(1)
    sets = changes_in(asked.out, asked.models)
    scores, evaluators = scores_of(sets)
    found = {**figures(sets, scores), "deeper": deeper(sets), "learning": learning(sets)}
    (asked.out / "combinations.json").write_text(json.dumps(found) + "\n")
    for name, parts in {"harm": ("harm",), "healing": ("healing",), **JOINED}.items():
        evaluator = as_strong_as_key(sets, evaluators, parts)
        [row] = [row for row in found["rows"] if row["score"] == name + SUMMED * (len(parts) > 1)]
        evaluator.provenance = provenance_of(
            evaluator, [each.of for each in sets], trained_on="; ".join(SAID[part] for part in parts),
            metrics={"cross_validated": row["auroc"]}, command="combine FOLDER --models MODELS",
            data=KEY_DATA if "key" in parts else {},
        )  # fmt: skip
        path = asked.out / f"{name.replace(' + ', '-').replace(' ', '-')}.safetensors"
        evaluator.save(path)
        path.with_suffix(".json").write_text(json.dumps(evaluator.provenance, indent=1) + "\n")
    for row in (*found["sets"], *found["rows"], *found["deeper"], *found["learning"]):
        print(json.dumps(row), flush=True)
