"""A finished run's folder of a few questions, made without a model: grades and p-values are drawn, not measured."""

import json
import lzma
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from caw_lab.evaluation.store import Generation, Score, Store

MODEL, TASK = "tiny-0.5b", "gsm8k"  # with a dot, as real models have
QUESTIONS = 40
KEYS = 2
# policy -> (kind, accuracy, mean log p of marked texts)
POLICIES = {
    "soft": ("fixed", 0.6, -2.0), "hard": ("fixed", 0.2, -9.0), "hard+entropy": ("entropy", 0.4, -5.0),
    "hard+caw-0.6": ("capacity", 0.55, -8.0),
}  # fmt: skip
ATTACKS = ("word-d-0.1", "word-s-0.3")


def cell_name(watermark: str = "none", policy: str = "", key: int = 0) -> str:
    return f"{MODEL}.{TASK}.none" if watermark == "none" else f"{MODEL}.{TASK}.{watermark}.{policy}.{key}"


def generation(i: int, correct: bool, text: str = "He has 3 apples. The answer is 3.") -> Generation:
    return Generation(
        f"{TASK}/test/{i}", (1, 2, 3), text, "eos", "3", correct, text, 0.5, 0.1, "stated", "run", ""
    )  # fmt: skip


def write_run(
    folder: Path, watermarks: tuple[str, ...] = ("kgw", "unigram"), *, attacks: tuple[str, ...] = ATTACKS
) -> Store:
    rng, store = np.random.default_rng(3), Store(folder)
    grades = rng.random(QUESTIONS) < 0.65
    _write_cell(store, cell_name(), grades, None, None, None, None)
    rows: list[dict[str, Any]] = [_row(None, None, grades, None, None)]
    scores: list[Score] = []
    for watermark in watermarks:
        negatives = [_score(rng, cell_name(), i, watermark, k, a, 0, 0.0)
                     for k in range(KEYS) for a in ("none", *attacks) for i in range(QUESTIONS)]  # fmt: skip
        scores += negatives
        for policy, (kind, accuracy, strength) in POLICIES.items():
            found, right = [], []
            for key in range(KEYS):
                grades = rng.random(QUESTIONS) < accuracy
                name = cell_name(watermark, policy, key)
                _write_cell(store, name, grades, watermark, policy, kind, key)
                right.append(grades)
                for attack in ("none", *attacks):
                    weaker = 1.0 if attack == "none" else 0.4
                    new = [_score(rng, name, i, watermark, key, attack, 1, weaker * strength) for i in range(QUESTIONS)]
                    scores += new
                    found += [s.p_value for s in new if attack == "none"]
            rows.append(_row(watermark, policy, np.concatenate(right), np.array(found), [s.p_value for s in negatives]))
    store.update_scores(scores)
    store.write_results({"rows": rows})
    return store


def _row(watermark: Any, policy: Any, grades: np.ndarray, found: Any, negatives: Any) -> dict[str, Any]:
    row = {
        "model": MODEL, "task": TASK, "n": len(grades), "watermark": watermark, "policy": policy,
        "key_id": "all" if watermark else None, "accuracy": float(grades.mean()), "accuracy_ci": [0.1, 0.9],
        "auroc": None, "f1": None, "tpr_at_fpr_1e2": None, "tpr_at_fpr_1e3": None, "tokens": 3 * len(grades),
        "tokens_median": 3.0, "unparsed": 1, "marked": 0.5, "changed": 0.1, "z_mean": 3.0,
        "command": "caw evaluate run --config small.yaml",
    }  # fmt: skip
    if found is not None:
        wins = (found[:, None] < np.array(negatives)[None]).mean()
        row |= {"auroc": float(wins), "f1": 0.75, "tpr_at_fpr_1e2": float((found <= 0.01).mean()),
                "tpr_at_fpr_1e3": float((found <= 0.001).mean())}  # fmt: skip
    return row


def _score(
    rng: np.random.Generator, cell: str, i: int, watermark: str, key: int, attack: str, label: int, strength: float
) -> Score:
    p = float(rng.random() * np.exp(strength * rng.random() * 2)) if label else float(rng.random())
    edits = 0.0 if attack == "none" else float(attack.rsplit("-", 1)[1])
    return Score(cell, f"{TASK}/test/{i}", watermark, key, attack, label, "model", p, 1.0, 3, 3, edits)


def _write_cell(store: Store, name: str, grades: Any, watermark: Any, policy: Any, kind: Any, key: Any) -> None:
    cell = store.cell(name)
    manifest = {"model": MODEL, "task": TASK, "watermark": watermark, "policy": policy, "key": key,
                "policy_parameters": {"kind": kind}}  # fmt: skip
    cell.begin(manifest)
    with cell.writer() as writer:
        for i, right in enumerate(grades):
            writer.write(asdict(generation(i, bool(right))))


def content_of(folder: Path) -> str:
    files = [(path, path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()]
    read = [lzma.decompress(content) if path.suffix == ".xz" else content for path, content in files]
    return b"\n".join(read).decode(errors="replace")


def write_perplexity(store: Store) -> None:
    rng = np.random.default_rng(4)
    with open(store.path / "perplexity.jsonl", "w") as file:
        for cell in store.cells():
            for g in cell.read():
                value = float(np.exp(rng.normal(1, 0.3)))
                line = {"id": g.id, "cell": cell.name, "model": "judge", "given": "question", "given_prompt": value,
                        "alone": 9.0, "num_tokens": 12}  # fmt: skip
                file.write(json.dumps(line) + "\n")
