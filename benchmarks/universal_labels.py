"""Labels of `bench_universal.py`: what becomes of a model's texts behind changes that a mark would make.

Results hold records and labels, and no texts.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import caw
from caw.decoding.prompts import encode_prompts
from caw.evaluation.tasks.gsm8k import GSM8K
from caw.fitting.healing import HealedText, HealSettings, measure_healing
from caw.fitting.own_texts import EVERYDAY
from caw.models.facts import ModelFacts
from caw.record import Record

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
KINDS = ("maths", "everyday")
FIRST = 3000  # of the questions of the train split; the others are for choices by whole texts
SHOTS = 5
STOP = "Question:"


def prompts_of(
    kind: str, subject: Subject, tokenizer: Any, facts: ModelFacts, data: Path, first: int, count: int
) -> Any:
    """(names, ids, stop strings) of the train prompts number `first` and on of a kind."""
    if kind == "maths":
        task = GSM8K("gsm8k", data=str(data), split="train", first=FIRST + first, count=count, shots=SHOTS)
        questions = task.questions()
        return [q.id for q in questions], encode_prompts(tokenizer, [q.prompt for q in questions], facts), (STOP,)
    lines = EVERYDAY.read_text(encoding="utf-8").splitlines()[first : first + count]
    prompts = [json.loads(line)["prompt"] for line in lines]
    said = prompts if subject.chat else [f"Question: {prompt}\nAnswer:" for prompt in prompts]
    names = [f"everyday/{first + number}" for number in range(len(prompts))]
    return names, encode_prompts(tokenizer, said, facts, chat=subject.chat), () if subject.chat else (STOP,)


def labels(asked: argparse.Namespace) -> None:
    """Roll changes out, a round of texts of every model and kind at a time."""
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    for turn in range(asked.rounds):
        for name in asked.only or SUBJECTS:
            subject, loaded = SUBJECTS[name], None
            for kind in KINDS:
                path = asked.out / f"{name}.{kind}.{turn}.npz"
                if path.exists():
                    continue
                model, tokenizer = loaded = loaded or subject.load(asked.models)
                facts = ModelFacts.of(model, tokenizer)
                count = asked.texts
                names, ids, stop = prompts_of(kind, subject, tokenizer, facts, asked.data, turn * count, count)
                if not ids:
                    continue
                settings = HealSettings(batch=asked.batch, stop=stop)
                texts = list(measure_healing(model, tokenizer, ids, settings))
                write_texts(path, names, texts)
                some = [change for text in texts for change in text.changes]
                print(
                    path.name, len(texts), "texts", len(some), "changes, rejoined",
                    round(float(np.mean([c.rejoined for c in some])), 3), "same",
                    round(float(np.mean([c.same for c in some])), 3), flush=True,
                )  # fmt: skip


def write_texts(path: Path, names: list[str], texts: list[HealedText]) -> None:
    """Write the records around every change, not the texts: rows of i-1, i, i+1, and behind the changed token."""
    texts = sorted((text for text in texts if text.changes), key=lambda text: text.number)
    columns: dict[str, list[Any]] = {name: [] for name in ("values", "ids", "logsumexp")}
    for text in texts:
        places = torch.tensor([change.place for change in text.changes])
        around = [text.records.take(places + offset) for offset in (-1, 0, 1)] + [text.after]
        for name in columns:
            columns[name].append(torch.stack([getattr(record, name) for record in around], dim=1).numpy())
    changes = [(number, change) for number, text in enumerate(texts) for change in text.changes]
    kinds = ("place", "token", "rejoined", "same", "length", "digit")
    np.savez(
        path,
        values=np.concatenate(columns["values"]).astype(np.float32),
        ids=np.concatenate(columns["ids"]).astype(np.int32),
        logsumexp=np.concatenate(columns["logsumexp"]).astype(np.float32),
        names=np.array([names[text.number] for text in texts]),
        document=np.array([number for number, _ in changes]),
        **{kind: np.array([getattr(change, kind) for _, change in changes]) for kind in kinds},
    )


def changes_of(folder: Path, name: str, kind: str) -> list[Any]:
    """What `labels` wrote of a model and kind of text."""
    files = sorted(folder.glob(f"{name}.{kind}.*.npz"), key=lambda path: int(path.name.split(".")[-2]))
    return [np.load(path) for path in files if path.stat().st_size]


def around(part: Any) -> list[Record]:
    """Records of i-1, i, i+1 and behind the change."""
    found = []
    for column in range(4):
        values, total = (torch.from_numpy(part[name][:, column]) for name in ("values", "logsumexp"))
        probs = torch.where(values == -torch.inf, 0.0, (values - total[:, None]).exp())
        found.append(Record(values, torch.from_numpy(part["ids"][:, column]).long(), probs, total))
    return found
