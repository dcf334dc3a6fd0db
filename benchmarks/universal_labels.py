"""Labels of `bench_universal.py`: what becomes of a model's texts behind changes that a mark would make.

A change heals, or does not (`caw_lab.training.healing`); it does harm, in nats (`caw_lab.training.swaps`); and in maths
it may lead to another answer, where the unmarked model goes on to the end. Files hold records, labels and ids
of tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import caw
from caw.decoding.prompts import encode_prompts
from caw.models.facts import ModelFacts
from caw.record import Record
from caw_lab.evaluation.tasks.grading import answer_of, same_number
from caw_lab.evaluation.tasks.gsm8k import GSM8K
from caw_lab.training.healing import HealedText, HealSettings, measure_healing
from caw_lab.training.own_texts import EVERYDAY
from caw_lab.training.swaps import falls_behind
from caw_lab.training.text_reader import TextReader, reader_for

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
HORIZON = 32  # tokens that harm is summed over
DEPTH = 8  # tokens of a rollout that are described
NEAR = 3  # places by which the old text may go on earlier or later
# labels are of questions of the train split from FIRST on and of the first LABELLED everyday prompts; the others are
# for choices by whole texts
FIRST = 3000
LABELLED = 128
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
    lines = EVERYDAY.read_text(encoding="utf-8").splitlines()[:LABELLED][first : first + count]
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
                settings = HealSettings(batch=asked.batch, stop=stop, places=asked.places, ahead=DEPTH)
                texts = list(measure_healing(model, tokenizer, ids, settings))
                texts = sorted((text for text in texts if text.changes), key=lambda text: text.number)
                reader = reader_for(model)
                harm = [harm_of(reader, text) for text in texts]
                write_texts(path, names, texts, harm)
                some = [change for text in texts for change in text.changes]
                print(
                    path.name, len(texts), "texts", len(some), "changes, rejoined",
                    round(float(np.mean([c.rejoined for c in some])), 3), "same",
                    round(float(np.mean([c.same for c in some])), 3), "harm",
                    round(float(np.mean(np.concatenate(harm))), 3), "CPU seconds",
                    round(time.process_time()), flush=True,
                )  # fmt: skip


def harm_of(reader: TextReader, text: HealedText) -> np.ndarray:
    """Nats that the tokens behind each change lose, float64 [n]."""
    ids, first = [*text.prompt, *text.tokens], len(text.prompt)
    logits = reader.read(ids, first)
    changes = [(change.place, change.token) for change in text.changes]
    return falls_behind(reader, ids, first, logits, changes, HORIZON).sum(1)


def ahead_of(text: HealedText) -> np.ndarray:
    """What the first tokens of each rollout say, float32 [n, DEPTH, 6]: entropy, gap between the two likeliest tokens,
    log-probability of the likeliest and of the old text's token at this place, whether both are the same, and whether
    the likeliest is one of the old text's near by. NaN where a rollout has ended."""
    found = np.full((len(text.changes), DEPTH, 6), np.nan, np.float32)
    for change, rows, said in zip(text.changes, text.ahead, found, strict=True):
        for number, (values, ids, probs, total) in enumerate(zip(*rows.tensors, strict=True)):
            at = change.place + 1 + number
            if at >= len(text.tokens):
                break
            old = (ids == text.tokens[at]).nonzero()[:, 0].tolist()
            place = old[0] if old else len(ids) - 1
            near = text.tokens[max(at - NEAR, change.place + 1) : at + NEAR + 1]
            said[number] = (
                float(torch.special.entr(probs).sum()), float(values[0] - values[1]), float(values[0] - total),
                float(values[place] - total), place == 0, int(ids[0]) in near,
            )  # fmt: skip
    return found


def write_texts(path: Path, names: list[str], texts: list[HealedText], harm: list[np.ndarray]) -> None:
    """Write the records around every change: rows of i-1, i, i+1, and behind the changed token; and its labels."""
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
        number=np.array([text.number for text in texts]),
        tokens=np.concatenate([text.tokens for text in texts]).astype(np.int32),
        lengths=np.array([len(text.tokens) for text in texts]),
        harm=np.concatenate(harm).astype(np.float32),
        ahead=np.concatenate([ahead_of(text) for text in texts]),
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


def answers(asked: argparse.Namespace) -> None:
    """Go on behind every change in maths to the end, without a mark, and note whether the answer is another one."""
    torch.set_num_threads(1)
    for name in asked.only or SUBJECTS:
        subject, loaded = SUBJECTS[name], None
        for path in sorted(asked.out.glob(f"{name}.maths.*.npz")):
            output = answers_path(path)
            if output.exists():
                continue
            part, turn = np.load(path), int(path.name.split(".")[-2])
            model, tokenizer = loaded = loaded or subject.load(asked.models)
            facts = ModelFacts.of(model, tokenizer)
            _, prompts, stop = prompts_of(
                "maths", subject, tokenizer, facts, asked.data, turn * asked.texts, asked.texts
            )
            olds = np.split(part["tokens"], np.cumsum(part["lengths"])[:-1])
            changes = list(zip(part["document"], part["place"], part["token"], strict=True))
            begun = [[*olds[n][:place].tolist(), int(token)] for n, place, token in changes]
            asks = [[*prompts[part["number"][n]], *text] for n, text in zip(part["document"], begun, strict=True)]
            made = caw.generate(
                model, tokenizer, asks, stop=list(stop), max_new_tokens=asked.tokens, batch_size=asked.batch,
                return_trace=False, progress=False,
            )  # fmt: skip
            own = [answer_of(_said(tokenizer, old)) for old in olds]
            new = [
                answer_of(_said(tokenizer, [*text, *more])) for text, more in zip(begun, made.sequences, strict=True)
            ]
            other = [
                -1 if own[n] is None else int(answer is None or not same_number(answer, own[n]))
                for n, answer in zip(part["document"], new, strict=True)
            ]
            np.savez(output, other=np.array(other))
            known = [each for each in other if each >= 0]
            print(output.name, len(known), "changes, another answer", round(float(np.mean(known)), 3), flush=True)


def answers_path(path: Path) -> Path:
    return path.with_name(f"answers-{path.name}")


def _said(tokenizer: Any, ids: Any) -> str:
    return str(tokenizer.decode([int(each) for each in ids], skip_special_tokens=True)).split(STOP)[0]
