"""Training of `bench_universal.py`: an evaluator of several models together, on key segments."""

from __future__ import annotations

import argparse
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import caw
from caw.evaluator import FeatureSpec
from caw.evaluator.token_classes import CLASSES, class_table_of
from caw.models import load_tokenizer
from caw_lab.training.pipeline import protect_line_ends
from caw_lab.training.positions import Positions
from caw_lab.training.settings import TrainSettings
from caw_lab.training.universal import Examples, train_network

SPEC = FeatureSpec(k=10, transform="gap", classes=len(CLASSES), line_ends=True)
NETWORK = TrainSettings(hidden=64, learning_rate=3e-3, max_epochs=40, patience=6)
FAST = "file-fast"


@dataclass(frozen=True)
class Subject:
    """source: of the model, a file in the folder of models unless it is the demo model. family: its relatives are held
    out with it. chat: whether everyday prompts are asked; otherwise they are continued."""

    source: str
    family: str
    chat: bool

    def path(self, folder: Path) -> str:
        return str(folder / self.source) if self.source.endswith(".gguf") else self.source

    def load(self, folder: Path) -> tuple[Any, Any]:
        fast = FAST if self.source.endswith(".gguf") else None
        return caw.load_model(self.path(folder), device="cpu", quantization=fast)


SUBJECTS = {
    "smollm2-135m": Subject("smollm2-135m", "smollm2", chat=True),
    "gemma3-270m": Subject("gemma3-270m.Q4_K_M.gguf", "gemma3", chat=False),
    "qwen2.5-coder-0.5b": Subject("qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf", "qwen2.5", chat=True),
    "qwen2.5-coder-1.5b": Subject("qwen2.5-coder-1.5b-instruct.Q4_K_M.gguf", "qwen2.5", chat=True),
}


def train(asked: argparse.Namespace) -> None:
    """Train the universal evaluator on key segments, and write it with its figures."""
    torch.set_num_threads(1)
    spec = dataclasses.replace(SPEC, previous=asked.previous, next=asked.next)
    sets = key_sets(asked, spec)
    network, scored = train_network(sets, spec, NETWORK)
    measured = {"settings": dataclasses.asdict(NETWORK), "sets": [each.row() for each in scored]}
    for row in measured["sets"]:
        print(json.dumps(row), flush=True)
    network.provenance = {
        "models": sorted({each.model for each in sets}),
        "trained_on": "key segments of GSM8K's train answers",
        # `caw evaluate evaluator` leaves out documents that an evaluator was trained on
        "data": {
            "examples": sum(len(each.key) for each in sets), "datasets": ["gsm8k/train"], "line_ends": True,
            "licence": ["GSM8K: MIT, (c) 2021 OpenAI, grade-school-math; no text is stored"],
        },
        "features": network.spec.to_dict(),
        "parameters": sum(p.numel() for p in network.parameters()),
        "metrics": measured,
        "command": f"python benchmarks/bench_universal.py {command_of(asked)}",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }  # fmt: skip
    path = asked.out / f"{asked.name}.safetensors"
    network.save(path)
    path.with_suffix(".json").write_text(json.dumps(network.provenance, indent=1) + "\n")


def command_of(asked: argparse.Namespace) -> str:
    """The command that trains the same again; folders by what they hold."""
    positions = " ".join(f"{each.partition('=')[0]}=POSITIONS" for each in asked.positions)
    window = f" --previous {asked.previous} --next {asked.next}" if (asked.previous, asked.next) != (1, 1) else ""
    return f"train FOLDER --models MODELS --positions {positions}{window} --name {asked.name}"


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
