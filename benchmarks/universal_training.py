"""Training of `bench_universal.py`: an evaluator of several models together, on healing or on key segments."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers
from universal_labels import KINDS, SUBJECTS, around, changes_of

from caw.defaults import THETA
from caw.evaluator import Evaluator, FeatureSpec
from caw.evaluator.token_classes import CLASSES, class_table_of
from caw.models import load_tokenizer
from caw.record import Record
from caw_lab.training.metrics import auroc
from caw_lab.training.pipeline import protect_line_ends
from caw_lab.training.positions import Positions
from caw_lab.training.settings import TrainSettings
from caw_lab.training.train import predict
from caw_lab.training.universal import Examples, Scored, described, settle_strength, train_line, train_network

SPEC = FeatureSpec(k=10, transform="gap", classes=len(CLASSES), line_ends=True)
NETWORK = TrainSettings(hidden=64, learning_rate=3e-3, max_epochs=40, patience=6)


def train(asked: argparse.Namespace) -> None:
    """Train the universal evaluator on healing or on key segments, and write it with its figures."""
    torch.set_num_threads(1)
    spec = dataclasses.replace(SPEC, previous=asked.previous, next=asked.next)
    figures: dict[str, Any] = {}
    if asked.label == "healing":
        sets = healing_sets(asked, spec)
        network, scored, figures = train_line(sets, spec)
    else:
        sets = key_sets(asked, spec)
        network, scored = train_network(sets, spec, NETWORK)
        figures = {"settings": dataclasses.asdict(NETWORK)}
    measured = described(scored, **figures)
    for row, each in zip(measured["sets"], scored, strict=True):
        row |= beside(asked, each)
        print(json.dumps(row), flush=True)
    if asked.act_as:
        settle_strength(network, *asked.act_as)
    network.provenance = provenance_of(
        network, sets, trained_on=LABELS[asked.label], metrics=measured, command=command_of(asked),
        data=KEY_DATA if asked.label == "key" else {},
    )  # fmt: skip
    if asked.act_as:
        network.provenance["act_as"] = dict(zip(("theta", "beta"), asked.act_as, strict=True))
    path = asked.out / f"{asked.name or asked.label}.safetensors"
    network.save(path)
    path.with_suffix(".json").write_text(json.dumps(network.provenance, indent=1) + "\n")


def provenance_of(
    network: Evaluator, sets: Sequence[Examples], *, trained_on: str, metrics: Any, command: str, data: dict[str, Any]
) -> dict[str, Any]:
    """What an evaluator was made of, for its file. command: of `bench_universal.py`. data: beside the sets, see
    `caw evaluate evaluator`, which leaves out documents that an evaluator was trained on."""
    return {
        "models": sorted({each.model for each in sets}),
        "trained_on": trained_on,
        "data": {"examples": sum(len(each.key) for each in sets), **data, "licence": [TEXTS_LICENCE]},
        "features": network.spec.to_dict(),
        "parameters": sum(p.numel() for p in network.parameters()),
        "metrics": metrics,
        "command": f"python benchmarks/bench_universal.py {command}",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def command_of(asked: argparse.Namespace) -> str:
    """The command that trains the same again; folders by what they hold."""
    said = ["train FOLDER --models MODELS", f"--label {asked.label}"]
    if asked.positions:
        said.append("--positions " + " ".join(f"{each.partition('=')[0]}=POSITIONS" for each in asked.positions))
    if (asked.previous, asked.next) != (1, 1):
        said.append(f"--previous {asked.previous} --next {asked.next}")
    if asked.name:
        said.append(f"--name {asked.name}")
    if asked.act_as:
        said.append("--act-as {:g} {:g}".format(*asked.act_as))
    return " ".join(said)


KEY_DATA = {"datasets": ["gsm8k/train"], "line_ends": True}  # of `key_sets`
LABELS = {
    "healing": "changes that a mark would make: does the text come back with the same numbers, names and code?",
    "key": "key segments of GSM8K's train answers",
}
TEXTS_LICENCE = "GSM8K: MIT, (c) 2021 OpenAI, grade-school-math; everyday prompts: of this library; no text is stored"


def healing_sets(asked: argparse.Namespace, spec: FeatureSpec) -> list[Examples]:
    """Changes of every model and kind of text; positive are those behind which the text does not heal."""
    found = []
    for name, subject in SUBJECTS.items():
        table = class_table_of(load_tokenizer(subject.path(asked.models)), spec.line_ends)
        for kind in KINDS:
            parts = changes_of(asked.out, name, kind)
            if not parts:
                continue
            features = [spec.assemble(around(part)[1 - spec.previous : 2 + spec.next], table) for part in parts]
            names = np.concatenate([part["names"][part["document"]] for part in parts])
            key = ~np.concatenate([part["same"] for part in parts])
            found.append(Examples(name, subject.family, kind, torch.cat(features), key, names))
    return found


def key_sets(asked: argparse.Namespace, spec: FeatureSpec) -> list[Examples]:
    """Key segments, from the positions that `caw train-evaluator --positions` stored for each model."""
    found = []
    for said in asked.positions:
        name, _, folder = said.partition("=")
        subject = SUBJECTS[name]
        table = class_table_of(load_tokenizer(subject.path(asked.models)), spec.line_ends)
        positions = protect_line_ends(Positions.open(folder), subject.path(asked.models))
        found.append(Examples.of_positions(name, subject.family, "maths", positions, spec, table))
    return found


def beside(asked: argparse.Namespace, scored: Scored) -> dict[str, Any]:
    """AUROC of entropy and of other evaluators on changes, and of all without those that touch a digit."""
    each = scored.examples
    if asked.label != "healing":
        return {}
    parts = changes_of(asked.out, each.model, each.kind)
    digit = np.concatenate([part["digit"] for part in parts])
    records = [Record.joined(columns) for columns in zip(*map(around, parts), strict=True)]
    scores = {"seen": scored.seen, "unseen": scored.unseen}
    scores["entropy"] = -torch.special.entr(records[1].probs).sum(1).numpy()
    tokenizer = load_tokenizer(SUBJECTS[each.model].path(asked.models))
    for name in asked.beside:
        evaluator = Evaluator.load(name)
        table = class_table_of(tokenizer, evaluator.spec.line_ends) if evaluator.spec.classes else None
        scores[name] = predict(evaluator, evaluator.spec.assemble(records[:3], table))
    own: dict[str, Any] = {"digits": round(float(digit.mean()), 4)}
    token = torch.from_numpy(np.concatenate([part["token"] for part in parts])).long()
    changed = torch.where(records[1].ids == token[:, None], records[1].values, 0.0).sum(1)
    lost = (records[1].values[:, 0] - changed).numpy()
    rules = {"unseen": (scored.unseen, 0.7), "fixed": (np.zeros(len(lost)), 1.0)}
    rules |= {name: (scores[name], THETA) for name in asked.beside}
    own["first"] = {
        name: round(float(np.mean(~each.key[first_marked(lost, *rule)])), 4) for name, rule in rules.items()
    }
    for name, score in scores.items():
        own[name] = _auroc(each.key, score)
        own[f"{name}, no digits"] = _auroc(each.key[~digit], score[~digit])
    return own


def first_marked(lost: np.ndarray, capacity: np.ndarray, theta: float) -> np.ndarray:
    """The quarter of the changes that a policy marks first as its strength grows; lost: what each costs, nats."""
    share = np.clip((theta - capacity) / theta, 0, None)
    needed = np.where(share > 0, lost / np.maximum(share, 1e-9), 1e9 + capacity)
    return np.argsort(needed, kind="stable")[: len(lost) // 4]


def _auroc(key: np.ndarray, score: np.ndarray) -> float:
    return round(auroc(key, score), 4)
