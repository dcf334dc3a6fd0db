"""Can the damage of one particular change be predicted, and better than by how important the token is?

collect: greedy answers to GSM8K train questions; at random places a candidate of a watermark (the likeliest green token
of a random list) takes the token's place; the model goes on greedily; label: does the final answer change? The records
that a decoder has at that moment are kept: p_{i-1}, p_i, and p_{i+1} given the original and given the candidate.
analyse: which scores tell harmful changes from harmless ones, cross-validated over questions.
fit: an evaluator of damage from the inputs that the given one has; its figure on questions that it did not see is
the mean of two halves, each judged by a fit to the other.

    python lab/damage.py --model MODEL --evaluator NAME --data-dir DATA --folder OUT --json damage.json \
        --fit damage.safetensors
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import caw
from caw.capacity import class_mass
from caw.evaluator import Evaluator
from caw.evaluator.token_classes import CLASSES
from caw.record import Record
from caw_lab.evaluation.tasks import GSM8K
from caw_lab.training.fit_damage import fit_damage

GAMMA = 0.25
KEPT = "changes.npz"
RECORDS = ("before", "here", "original", "candidate")


def collect(args: argparse.Namespace) -> dict[str, np.ndarray]:
    """Arrays with a row per change; see the top of the file."""
    model, tokenizer = caw.load_model(args.model, dtype=args.dtype)
    task = GSM8K("gsm8k", args.data_dir, "train", args.first, args.questions)
    questions = task.questions()
    options: dict[str, Any] = {"return_trace": False, "progress": False, "stop": task.stop, "batch_size": 16}
    prompts = [tokenizer(q.prompt)["input_ids"] for q in questions]
    plain = caw.generate(model, tokenizer, prompts, max_new_tokens=200, **options)
    grades = [task.grade(text, q.gold) for text, q in zip(plain.texts, questions, strict=True)]
    rows: list[dict[str, Any]] = []
    prefix = Prefix(model, prompts)
    for i, (prompt, new) in enumerate(zip(prompts, plain.sequences, strict=True)):
        if grades[i].answer is not None and len(new) > 2:
            rows += changes_of(model, prefix, i, prompt, new, args.changes)
    starts = [[*prompts[r["question"]], *plain.sequences[r["question"]][: r["place"]], r["candidate"]] for r in rows]
    ends = caw.generate(model, tokenizer, starts, max_new_tokens=200, **options)
    for row, rest in zip(rows, ends.sequences, strict=True):
        q, new = row["question"], plain.sequences[row["question"]]
        text = tokenizer.decode([*new[: row["place"]], row["candidate"], *rest], skip_special_tokens=True)
        after = task.grade(text, questions[q].gold)
        row["changed"] = after.answer != grades[q].answer
        row["right_before"], row["right_after"] = grades[q].correct, after.correct
        row["length"] = len(new)
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


class Prefix:
    """Keys and values of what all prompts begin with."""

    def __init__(self, model: Any, prompts: list[list[int]]) -> None:
        shortest = min(len(p) for p in prompts)
        self.length = next((j for j in range(shortest) if len({p[j] for p in prompts}) > 1), shortest) - 1
        with torch.inference_mode():
            self.cache = model(input_ids=torch.tensor([prompts[0][: self.length]]), use_cache=True).past_key_values


@torch.inference_mode()
def changes_of(
    model: Any, prefix: Prefix, question: int, prompt: list[int], new: list[int], count: int
) -> list[dict[str, Any]]:
    """At most `count` changes of one answer: places whose token is red under a random list; its best green token."""
    rng = np.random.default_rng(question)
    cache, first = copy.deepcopy(prefix.cache), len(prompt)
    ids = [*prompt, *new]
    logits = model(input_ids=torch.tensor([ids[prefix.length :]]), past_key_values=cache, use_cache=True).logits[0]
    chosen: list[tuple[int, Record, int]] = []
    for place in rng.permutation(len(new) - 1).tolist():
        at = first + place - prefix.length - 1  # this row of logits is of the token at `place`
        record = Record.from_logits(logits[at - 1 : at + 2].float())
        green = rng.random(record.ids.shape[1]) < GAMMA
        if green[0] or not green.any() or int(record.ids[1, 0]) != new[place]:
            continue
        chosen.append((place, record, int(np.argmax(green))))
        if len(chosen) == count:
            break
    rows = []
    for place, record, rank in sorted(chosen, key=lambda c: -c[0]):  # from the end: each crop leaves what is needed
        cache.crop(first + place - cache.get_seq_length())
        candidate = int(record.ids[1, rank])
        told = model(input_ids=torch.tensor([[candidate]]), past_key_values=cache, use_cache=True).logits[0, -1:]
        after = Record.from_logits(told.float())
        row: dict[str, Any] = {"question": question, "place": place, "candidate": candidate, "original": new[place]}
        row["gap"] = float(record.values[1, 0] - record.values[1, rank])
        sources = {"before": (record, 0), "here": (record, 1), "original": (record, 2), "candidate": (after, 0)}
        for name, (source, k) in sources.items():
            row[f"probs_{name}"], row[f"ids_{name}"] = source.probs[k].numpy().copy(), source.ids[k].numpy().copy()
        rows.append(row)
    return rows


def records_of(data: dict[str, np.ndarray]) -> dict[str, Record]:
    """The records of all changes by name, [N, K]."""
    records = {}
    for name in RECORDS:
        probs, ids = torch.from_numpy(data[f"probs_{name}"]), torch.from_numpy(data[f"ids_{name}"])
        records[name] = Record(probs.clamp_min(1e-30).log(), ids, probs, torch.zeros(len(probs)))
    return records


def features_of(records: dict[str, Record], evaluator: Evaluator, after: str = "original") -> torch.Tensor:
    """Inputs of the evaluator [N, size], what follows being that of the original or of the candidate."""
    return evaluator.spec.assemble([records["before"], records["here"], records[after]], evaluator.token_class)


def fit(data: dict[str, np.ndarray], evaluator: Evaluator, path: Path, made_from: dict[str, Any]) -> dict[str, Any]:
    """Write the evaluator of damage fitted to all changes; figures of two halves of the questions, each unseen."""
    from sklearn.metrics import roc_auc_score

    features, changed, question = features_of(records_of(data), evaluator), data["changed"], data["question"]
    names = np.unique(question)
    first = np.isin(question, names[: len(names) // 2])
    scores = np.zeros(len(changed))
    for train in (first, ~first):
        half, _ = fit_damage(evaluator, features[train], changed[train], question[train])
        scores[~train] = half.logits(features[~train]).detach().numpy()
    with torch.inference_mode():
        own = evaluator.logits(features).numpy()
    gains, unseen = [], {}
    for part, rows in (("first half", first), ("second half", ~first)):
        unseen[part] = [round(float(roc_auc_score(changed[rows], s[rows])), 4) for s in (scores, own)]
    for low in bootstrap(question):
        gains.append(
            np.mean([roc_auc_score(changed[r], scores[r]) - roc_auc_score(changed[r], own[r])
                     for r in (low[first[low]], low[~first[low]])])
        )  # fmt: skip
    made, figures = fit_damage(evaluator, features, changed, question)
    found = {
        **figures,
        "unseen": {
            "auroc_damage_and_given": unseen, "gain_ci": np.quantile(gains, [0.025, 0.975]).round(4).tolist()
        },
    }  # fmt: skip
    made.provenance.update(
        {"model": evaluator.provenance["model"], "trained_on": "damage: does the answer change with the token?",
         "features": evaluator.spec.to_dict(), "metrics": found, **made_from}
    )  # fmt: skip
    made.save(path)
    path.with_suffix(".json").write_text(json.dumps(made.provenance, indent=1) + "\n")
    return found


def inputs(data: dict[str, np.ndarray], evaluator: Evaluator) -> dict[str, np.ndarray]:
    """Scores and small inputs [N] or [N, n] of every change."""
    records, table = records_of(data), evaluator.token_class
    assert table is not None

    def capacity(after: str) -> np.ndarray:
        with torch.inference_mode():
            return evaluator(features_of(records, evaluator, after)).numpy()

    def logit(p: np.ndarray) -> np.ndarray:
        return np.log(np.clip(p, 1e-4, 1 - 1e-4)) - np.log1p(-np.clip(p, 1e-4, 1 - 1e-4))

    def one_hot(ids: np.ndarray) -> np.ndarray:
        return np.eye(len(CLASSES))[table.numpy()[ids]]

    found = {"capacity": logit(capacity("original")), "capacity given the candidate": logit(capacity("candidate"))}
    found["gap"], found["place"] = data["gap"], data["place"] / data["length"]
    for name in RECORDS:
        p = np.maximum(data[f"probs_{name}"], 1e-30)
        found[f"entropy {name}"] = -(p * np.log(p)).sum(1)
        mass = class_mass(records[name].ids, records[name].probs, table, len(CLASSES))
        found[f"masses {name}"] = np.log(np.maximum(mass.numpy(), 1e-4))
    found["class of the original"], found["class of the candidate"] = (
        one_hot(data["original"]),
        one_hot(data["candidate"]),
    )
    found["overlap of what follows"] = overlap(data)
    return found


def overlap(data: dict[str, np.ndarray]) -> np.ndarray:
    """Probability that what follows the original and what follows the candidate share, [N]."""
    shared = []
    for a, p, b, q in zip(data["ids_original"], data["probs_original"], data["ids_candidate"], data["probs_candidate"],
                          strict=True):  # fmt: skip
        theirs = dict(zip(b.tolist(), q.tolist(), strict=True))
        shared.append(sum(min(x, theirs.get(i, 0.0)) for i, x in zip(a.tolist(), p.tolist(), strict=True)))
    return np.array(shared)


PLAIN = ("capacity", "capacity given the candidate", "gap", "entropy here", "overlap of what follows")


def analyse(data: dict[str, np.ndarray], evaluator: Evaluator) -> dict[str, Any]:
    """AUROC of each score for "the answer changes", and for "a right answer becomes wrong" among right ones."""
    from sklearn.metrics import roc_auc_score

    found = inputs(data, evaluator)
    everything = np.concatenate([v.reshape(len(data["gap"]), -1) for v in found.values()], axis=1)
    pair = np.stack([found["capacity"], found["gap"]], axis=1)
    scores = {name: found[name] * (-1 if name.startswith("overlap") else 1) for name in PLAIN}
    scores["capacity and gap (logistic)"] = crossed(pair, data, "logistic")
    scores["damage network (all inputs, boosted trees)"] = crossed(everything, data, "trees")
    scores["damage network (all inputs, logistic)"] = crossed(everything, data, "logistic")
    right = data["right_before"].astype(bool)
    rows = []
    for name, score in scores.items():
        low, high = interval(data["changed"], score, data["question"])
        harmed = ~data["right_after"].astype(bool)[right]
        both = 0 < harmed.sum() < len(harmed)
        rows.append({
            "score": name, "auroc_changed": round(float(roc_auc_score(data["changed"], score)), 4),
            "auroc_changed_ci": [round(low, 4), round(high, 4)],
            "auroc_harmed": round(float(roc_auc_score(harmed, score[right])), 4) if both else None,
        })  # fmt: skip
    return {
        "changes": len(right), "questions": len(np.unique(data["question"])),
        "answers_changed": round(float(data["changed"].mean()), 4), "of_right_answers": int(right.sum()),
        "right_answers_lost": round(float((~data["right_after"].astype(bool))[right].mean()), 4),
        "wrong_answers_won": round(float(data["right_after"].astype(bool)[~right].mean()), 4),
        "answers_changed_by_capacity": by_capacity(data, found["capacity"]), "rows": rows,
    }  # fmt: skip


def by_capacity(data: dict[str, np.ndarray], capacity: np.ndarray) -> list[dict[str, float]]:
    """Share of changed answers in parts of the capacity's range."""
    p = 1 / (1 + np.exp(-capacity))
    edges = [0, 0.1, 0.5, 0.9, 1.0]
    parts = [(low, high, (p >= low) & (p <= high)) for low, high in pairwise(edges)]
    return [
        {"from": a, "to": b, "changes": int(m.sum()), "answers_changed": round(float(data["changed"][m].mean()), 4)}
        for a, b, m in parts
        if m.any()
    ]


def crossed(x: np.ndarray, data: dict[str, np.ndarray], kind: str) -> np.ndarray:
    """Predictions [N] for questions that the model did not see in training."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model: Any = HistGradientBoostingClassifier(max_depth=3, learning_rate=0.05, max_iter=120, random_state=0)
    if kind == "logistic":
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.05, max_iter=2000))
    folds = GroupKFold(5)
    return cross_val_predict(model, x, data["changed"], groups=data["question"], cv=folds, method="predict_proba")[:, 1]


def interval(labels: np.ndarray, score: np.ndarray, question: np.ndarray, resamples: int = 500) -> tuple[float, float]:
    """95 % interval of the AUROC, questions resampled with all their changes."""
    from sklearn.metrics import roc_auc_score

    values = [roc_auc_score(labels[drawn], score[drawn]) for drawn in bootstrap(question, resamples)]
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def bootstrap(question: np.ndarray, resamples: int = 500) -> Iterator[np.ndarray]:
    """Rows of questions drawn with replacement, each with all its changes."""
    rng, names = np.random.default_rng(0), np.unique(question)
    rows = {name: np.flatnonzero(question == name) for name in names}
    for _ in range(resamples):
        yield np.concatenate([rows[name] for name in rng.choice(names, len(names))])


def joined(folders: Sequence[Path]) -> dict[str, np.ndarray]:
    """Changes of all folders; questions of different folders are different."""
    parts = [dict(np.load(folder / KEPT)) for folder in folders]
    for number, part in enumerate(parts):
        part["question"] = part["question"] + number * 1_000_000
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--evaluator", required=True)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="keeps changes.npz, so that they are made once")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--also", type=Path, nargs="+", default=[], help="folders of earlier runs on other questions")
    parser.add_argument("--fit", type=Path, help="write an evaluator of damage (.safetensors)")
    parser.add_argument("--first", type=int, default=6800)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--changes", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    if not (args.folder / KEPT).is_file():
        args.folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(args.folder / KEPT, **collect(args))
    data, evaluator = joined([args.folder, *args.also]), Evaluator.load(args.evaluator)
    command = (
        f"python lab/damage.py --model {Path(args.model).name} --evaluator {args.evaluator} "
        f"--data-dir DATA --folder OUT --json damage.json --first {args.first} --questions {args.questions} "
        f"--changes {args.changes}{' --also ' + ' '.join(['ANOTHER'] * len(args.also)) if args.also else ''}"
        f"{' --fit damage.safetensors' if args.fit else ''}"
    )
    result = {"model": Path(args.model).name, **analyse(data, evaluator), "command": command}
    if args.fit:
        made_from = {
            "data": {"questions": "gsm8k/train, 5 examples before each", "licence": "MIT, (c) 2021 OpenAI"},
            "evaluator": args.evaluator, "dtype": args.dtype, "command": command,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }  # fmt: skip
        result["fit"] = fit(data, evaluator, args.fit, made_from)
        print(result["fit"])
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    for row in result["rows"]:
        print(row)


if __name__ == "__main__":
    main()
