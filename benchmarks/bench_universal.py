"""One evaluator for every model: its labels, its training, and what it is worth in whole texts.

    python benchmarks/bench_universal.py labels runs/universal --data DATA --models FOLDER
    python benchmarks/bench_universal.py train runs/universal --models FOLDER --label healing --act-as 0.7 5
    python benchmarks/bench_universal.py train runs/universal --models FOLDER --label key --name universal \\
        --positions MODEL=POSITIONS ...
    python benchmarks/bench_universal.py texts runs/universal/texts.jsonl --data DATA --models FOLDER
    python benchmarks/bench_universal.py gather --trained runs/universal/*.json --texts runs/universal/texts.jsonl \\
        --output benchmarks/results/universal.json

FOLDER holds the GGUF files named below. Every part can be stopped and continued. Results hold numbers and no texts.
`gather --add` leaves what stands in the output and is not among what is gathered.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import caw
from caw.decoding.prompts import encode_prompts
from caw.defaults import THETA
from caw.evaluation.tasks.grading import grade_number
from caw.evaluation.tasks.gsm8k import GSM8K
from caw.evaluator import Evaluator, FeatureSpec
from caw.evaluator.token_classes import CLASSES, class_table_of
from caw.fitting.healing import HealedText, HealSettings, measure_healing
from caw.fitting.metrics import auroc
from caw.fitting.own_texts import EVERYDAY
from caw.fitting.pipeline import protect_line_ends
from caw.fitting.positions import Positions
from caw.fitting.settings import TrainSettings
from caw.fitting.train import predict
from caw.fitting.universal import Examples, Scored, described, settle_strength, train_line, train_network
from caw.keeps import answer_of, same_number
from caw.models import load_tokenizer
from caw.models.facts import ModelFacts
from caw.models.teacher import log_probs
from caw.record import Record

FAST = "file-fast"
OTHERS = Path(__file__).parent / "evaluation" / "everyday.jsonl"  # prompts that nothing was chosen on


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


# ---- labels ----------------------------------------------------------------------------------------------------------
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


# ---- training --------------------------------------------------------------------------------------------------------
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
    network.provenance = {
        "models": sorted({each.model for each in sets}),
        "trained_on": LABELS[asked.label],
        "data": {"examples": sum(len(each.key) for each in sets), "licence": [TEXTS_LICENCE]},
        "features": spec.to_dict(),
        "parameters": sum(p.numel() for p in network.parameters()),
        "metrics": measured,
        **({"act_as": dict(zip(("theta", "beta"), asked.act_as, strict=True))} if asked.act_as else {}),
        "command": f"python benchmarks/bench_universal.py train FOLDER --label {asked.label}"
        + (" --act-as {:g} {:g}".format(*asked.act_as) if asked.act_as else ""),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    path = asked.out / f"{asked.name or asked.label}.safetensors"
    network.save(path)
    path.with_suffix(".json").write_text(json.dumps(network.provenance, indent=1) + "\n")


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


# ---- whole texts -----------------------------------------------------------------------------------------------------
KINDS_OF_TEXTS = {"maths": 0.01, "everyday": 0.001}  # level of the test, which is the target too


def texts(asked: argparse.Namespace) -> None:
    """Mark greedy texts under every policy, each until it reaches its target, and note what became of them.

    --policies: lines NAME=EVALUATOR:THETA:BETA, or NAME=fixed:STRENGTH; strengths are multiples of 4 logits.
    """
    torch.set_num_threads(1)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    subject, level = SUBJECTS[asked.model], KINDS_OF_TEXTS[asked.kind]
    known = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    done = {(row["policy"], row["key"], row["id"]) for row in known if row["model"] == asked.model}
    wanted = [("none", 0), *((policy, key) for policy in asked.policies for key in range(asked.keys))]
    model, tokenizer = subject.load(asked.models)
    judge = Judge(asked.judge, asked.models) if asked.judge else None
    prompts = asked_prompts(asked, subject)
    limits: dict[str, Any] = {"max_new_tokens": asked.tokens, "progress": False, "return_trace": False}
    limits |= {"stop": STOP} if asked.kind == "maths" or not subject.chat else {}
    limits |= {"chat": subject.chat} if asked.kind == "everyday" else {}
    for start in range(0, len(prompts), asked.batch):
        group, cache = prompts[start : start + asked.batch], caw.PromptCache()
        for policy, key in wanted:
            name = policy.partition("=")[0]
            some = [each for each in group if (name, key, each[0]) not in done]
            if not some:
                continue
            mark = None if name == "none" else caw.KGW(key=key_of(key), gamma=0.25, delta=4.0)
            made = caw.generate(
                model, tokenizer, [prompt for _, prompt, _ in some], watermark=mark,
                policy=None if mark is None else policy_of(policy, level), batch_size=asked.batch,
                prompt_cache=cache, **limits,
            )  # fmt: skip
            tested = mark or caw.KGW(key=key_of(0), gamma=0.25, delta=4.0)
            rows = []
            for (number, prompt, gold), text, ids in zip(some, made.texts, made.sequences, strict=True):
                row = {"model": asked.model, "kind": asked.kind, "split": asked.split, "policy": name, "key": key}
                row |= {"id": number, "tokens": len(ids), "p": caw.detect(text, tokenizer, tested, fpr=level).p_value}
                if gold is not None:
                    row |= {"answer": answer_of(text), "right": grade_number(text, gold).correct}
                if judge is not None:
                    row["nats"] = judge(prompt, text)
                rows.append(row)
            with asked.out.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
        report([json.loads(line) for line in asked.out.read_text().splitlines()])


def asked_prompts(asked: argparse.Namespace, subject: Subject) -> list[tuple[str, str, str | None]]:
    """(name, prompt, right answer) of each prompt: train ones from the front, which no label is of, or test ones."""
    if asked.kind == "maths":
        task = GSM8K(
            "gsm8k", data=str(asked.data), split=asked.split, first=asked.first, count=asked.count, shots=SHOTS
        )
        return [(question.id, question.prompt, question.gold) for question in task.questions()]
    path = EVERYDAY if asked.split == "train" else OTHERS
    lines = path.read_text(encoding="utf-8").splitlines()
    lines = lines[::-1] if asked.split == "train" else lines  # labels are of the first ones
    some = [json.loads(line)["prompt"] for line in lines[asked.first : asked.first + asked.count]]
    said = some if subject.chat else [f"Question: {prompt}\nAnswer:" for prompt in some]
    return [(f"{asked.split}/{asked.first + number}", prompt, None) for number, prompt in enumerate(said)]


def policy_of(said: str, level: float) -> Any:
    """Return the policy of a line of --policies, with a target."""
    name, *numbers = said.partition("=")[2].rsplit(":", 1 if said.partition("=")[2].startswith("fixed") else 2)
    if name == "fixed":
        return caw.FixedStrength(float(numbers[0]), target=level)
    return caw.CapacityPolicy(name, *(float(number) for number in numbers), target=level)


def key_of(number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"caw/universal/{number}".encode()).digest()[:8], "big")


class Judge:
    """Another model's cost of a text behind its prompt, nats per token of that model."""

    def __init__(self, name: str, folder: Path) -> None:
        self.chat = SUBJECTS[name].chat
        self.model, self.tokenizer = SUBJECTS[name].load(folder)

    def __call__(self, prompt: str, text: str) -> float | None:
        if self.chat and not prompt.startswith("Question:"):
            before = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
            )
        else:
            before = prompt
        ids = self.tokenizer(before, add_special_tokens=False)["input_ids"]
        own = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(own) < 2:
            return None
        [found] = log_probs(self.model, [([*ids, *own], len(ids))])
        return float(f"{-found.mean():.4g}")


def report(rows: list[dict[str, Any]]) -> None:
    for line in summaries(rows):
        print(json.dumps(line), flush=True)


def summaries(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every model, kind, split and policy: the share found, of answers kept and right, and the rise in nats.

    both: found and kept. Intervals are bootstrapped over prompts, with all their keys.
    """
    made = []
    for (model, kind, split), by_policy, bare in _runs(rows):
        for policy, own in by_policy.items():
            some = list(own.values())
            if not some:
                continue
            ids = [row["id"] for row in some]
            line = {"model": model, "kind": kind, "split": split, "policy": policy, "texts": len(some)}
            line["prompts"] = len(set(ids))
            line["tokens"] = round(float(np.mean([row["tokens"] for row in some])), 1)
            for name, values in _columns(some, bare, kind).items():
                line[name], line[f"{name}_ci"] = mean_of(values, ids)
            made.append(line)
    return made


PAIRS = (
    *((one, other) for one in ("universal", "universal3") for other in ("own", "fixed")),
    ("own", "fixed"),
)


def pairs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What one policy has over another on the same prompts and keys: differences, with intervals over prompts.

    rise_ratio: the rise in nats of the first over that of the second.
    """
    made = []
    for (model, kind, split), by_policy, bare in _runs(rows):
        for one, other in PAIRS:
            both = [case for case in by_policy.get(one, {}) if case in by_policy.get(other, {})]
            if not both:
                continue
            a, b = (_columns([by_policy[policy][case] for case in both], bare, kind) for policy in (one, other))
            ids = [row_id for _, row_id in both]
            line = {"model": model, "kind": kind, "split": split, "policy": one, "than": other, "texts": len(both)}
            line["prompts"] = len(set(ids))
            for name in (name for name in a if name in b and name != "nats"):
                line[name], line[f"{name}_ci"] = mean_of(a[name] - b[name], ids)
            if "rise" in a and "rise" in b:
                line["rise_ratio"], line["rise_ratio_ci"] = ratio_of(a["rise"], b["rise"], ids)
            made.append(line)
    return made


Case = tuple[int, str]  # key and prompt


def _runs(
    rows: list[dict[str, Any]],
) -> list[tuple[tuple[str, str, str], dict[str, dict[Case, dict[str, Any]]], dict[str, dict[str, Any]]]]:
    """Of every model, kind and split: each policy's rows, a text that stands twice once, and the unmarked ones."""
    found: dict[tuple[str, str, str], dict[str, dict[Case, dict[str, Any]]]] = {}
    for row in rows:
        by_policy = found.setdefault((row["model"], row["kind"], row["split"]), {})
        by_policy.setdefault(row["policy"], {})[row["key"], row["id"]] = row
    made = []
    for name in sorted(found):
        bare = {row_id: row for (_, row_id), row in found[name].get("none", {}).items()}
        known = {
            policy: {case: row for case, row in own.items() if case[1] in bare} for policy, own in found[name].items()
        }
        made.append((name, known, bare))
    return made


def _columns(rows: list[dict[str, Any]], bare: dict[str, dict[str, Any]], kind: str) -> dict[str, np.ndarray]:
    """A value of each text, by what it says."""
    columns: dict[str, list[Any]] = {"found": [row["p"] <= KINDS_OF_TEXTS[kind] for row in rows]}
    if kind == "maths":
        columns["kept"] = [same(row["answer"], bare[row["id"]]["answer"]) for row in rows]
        columns["right"] = [row["right"] for row in rows]
        columns["both"] = [a and b for a, b in zip(columns["found"], columns["kept"], strict=True)]
    if any(row.get("nats") is not None for row in rows):
        columns["nats"] = [row.get("nats") for row in rows]
        columns["rise"] = [
            None if row.get("nats") is None or bare[row["id"]].get("nats") is None
            else row["nats"] - bare[row["id"]]["nats"]
            for row in rows
        ]  # fmt: skip
    return {name: np.array(values, dtype=float) for name, values in columns.items()}


def same(one: str | None, other: str | None) -> bool:
    return one == other if one is None or other is None else same_number(one, other)


def mean_of(values: np.ndarray, ids: list[str]) -> tuple[float, tuple[float, float]]:
    """The mean, and its 95 % interval over prompts; of the values that are numbers."""
    known = np.isfinite(values)
    return ratio_of(np.where(known, values, 0), known.astype(float), ids)


def ratio_of(above: np.ndarray, below: np.ndarray, ids: list[str]) -> tuple[float, tuple[float, float]]:
    """The ratio of two sums, and its 95 % interval over prompts; of the texts that have both values."""
    known = np.isfinite(above) & np.isfinite(below)
    names, group = np.unique(ids, return_inverse=True)
    sums, sizes = (np.bincount(group[known], values[known], minlength=len(names)) for values in (above, below))
    drawn = np.random.default_rng(0).integers(len(names), size=(1000, len(names)))
    most = sizes[drawn].sum(1)
    ratios = sums[drawn].sum(1)[most != 0] / most[most != 0]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return round(float(sums.sum() / sizes.sum()), 4), (round(float(low), 4), round(float(high), 4))


def gather(asked: argparse.Namespace) -> None:
    """Write what the pages show: the figures of each training, and of whole texts the summaries and pairs.

    With --add, what the output has of other trainings, policies and pairs stays.
    """
    about = {path.stem: json.loads(path.read_text()) for path in asked.trained}
    trained = {name: {"trained_on": it["trained_on"], **it["metrics"]} for name, it in about.items()}
    rows = [json.loads(line) for path in asked.texts for line in path.read_text().splitlines()]
    old = json.loads(asked.output.read_text()) if asked.add and asked.output.exists() else {}
    found = {
        "trained": old.get("trained", {}) | trained,
        "policies": old.get("policies", {}) | dict(said.split("=", 1) for said in asked.policies),
        "texts": _added(old.get("texts", []), summaries(rows)),
        "pairs": _added(old.get("pairs", []), pairs(rows)),
        "command": "python benchmarks/bench_universal.py gather",
    }
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text(json.dumps(found, separators=(",", ":")) + "\n")


def _added(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Old lines whose case no new one has, and the new ones; of one model, kind and split together."""

    def case(line: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(line.get(name) for name in ("model", "kind", "split", "policy", "than"))

    by_case = {case(line): line for line in (*old, *new)}
    return sorted(by_case.values(), key=lambda line: case(line)[:3])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    own = commands.add_parser("labels")
    own.add_argument("out", type=Path)
    own.add_argument("--data", type=Path, required=True)
    own.add_argument("--models", type=Path, required=True)
    own.add_argument("--rounds", type=int, default=5)
    own.add_argument("--texts", type=int, default=32, help="of a round")
    own.add_argument("--batch", type=int, default=48)
    own.add_argument("--only", nargs="*")
    own.set_defaults(run=labels)
    own = commands.add_parser("train")
    own.add_argument("out", type=Path, help="folder of the labels")
    own.add_argument("--models", type=Path, required=True)
    own.add_argument("--label", choices=LABELS, default="healing")
    own.add_argument("--positions", nargs="*", default=[], help="MODEL=FOLDER of stored positions")
    own.add_argument("--previous", type=int, default=1)
    own.add_argument("--next", type=int, default=1)
    own.add_argument("--name", help="of the file")
    own.add_argument("--act-as", type=float, nargs=2, help="theta and beta that the defaults shall act as")
    own.add_argument("--beside", nargs="*", default=["smollm2-135m", "qwen2.5-coder-0.5b"])
    own.set_defaults(run=train)
    own = commands.add_parser("texts")
    own.add_argument("out", type=Path)
    own.add_argument("--data", type=Path, required=True)
    own.add_argument("--models", type=Path, required=True)
    own.add_argument("--model", default="qwen2.5-coder-0.5b")
    own.add_argument("--kind", choices=KINDS, default="maths")
    own.add_argument("--split", choices=("train", "test"), default="train")
    own.add_argument("--policies", nargs="+", required=True)
    own.add_argument("--judge", choices=SUBJECTS)
    own.add_argument("--keys", type=int, default=1)
    own.add_argument("--first", type=int, default=0)
    own.add_argument("--count", type=int, default=96)
    own.add_argument("--tokens", type=int, default=200)
    own.add_argument("--batch", type=int, default=32)
    own.set_defaults(run=texts)
    own = commands.add_parser("gather")
    own.add_argument("--trained", type=Path, nargs="*", default=[], help="JSON files that `train` wrote")
    own.add_argument("--texts", type=Path, nargs="*", default=[], help="files that `texts` wrote")
    own.add_argument("--policies", nargs="*", default=[], help="as for `texts`, to say what the names mean")
    own.add_argument("--output", type=Path, required=True)
    own.add_argument("--add", action="store_true", help="keep what OUTPUT has and is not gathered")
    own.set_defaults(run=gather)
    asked = parser.parse_args()
    asked.run(asked)


if __name__ == "__main__":
    main()
