"""One evaluator for every model: its training on key segments, and what evaluators are worth in whole texts.

    python benchmarks/bench_universal.py train runs/universal --models FOLDER --name universal \\
        --positions MODEL=POSITIONS ...
    python benchmarks/bench_universal.py texts runs/universal/texts.jsonl --data DATA --models FOLDER
    python benchmarks/bench_universal.py gather --trained runs/universal/*.json --texts runs/universal/texts.jsonl \\
        --output benchmarks/results/universal.json

FOLDER holds the GGUF files of `SUBJECTS`, POSITIONS what `caw train-evaluator --positions` stored for a model. `texts`
can be stopped and continued. Results hold numbers and no texts. `gather --add` leaves what stands in the output and is
not among what is gathered.
"""

import argparse
import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import caw
from caw.evaluator import FeatureSpec
from caw.evaluator.token_classes import CLASSES, class_table_of
from caw.models import load_tokenizer
from caw.models.teacher import log_probs
from caw_lab.evaluation.tasks.grading import answer_of, grade_number, same_number
from caw_lab.evaluation.tasks.gsm8k import GSM8K
from caw_lab.training.everyday import EVERYDAY
from caw_lab.training.pipeline import protect_line_ends
from caw_lab.training.positions import Positions
from caw_lab.training.settings import TrainSettings
from caw_lab.training.universal import Examples, train_network

OTHERS = Path(__file__).parent / "evaluation" / "everyday.jsonl"  # prompts that nothing was chosen on
LABELLED = 128  # everyday prompts that are left to labels; the others are for choices by whole texts
SHOTS, STOP = 5, "Question:"
KINDS_OF_TEXTS = {"maths": 0.01, "everyday": 0.001}  # level of the test, which is the target too


@dataclasses.dataclass(frozen=True)
class Subject:
    """source: of the model, a file in the folder of models unless it is the demo model. family: its relatives are held
    out with it. chat: whether everyday prompts are asked; otherwise they are continued."""

    source: str
    family: str
    chat: bool

    def path(self, folder: Path) -> str:
        return str(folder / self.source) if self.source.endswith(".gguf") else self.source

    def load(self, folder: Path) -> tuple[Any, Any]:
        fast = "file-fast" if self.source.endswith(".gguf") else None
        return caw.load_model(self.path(folder), device="cpu", quantization=fast)


SUBJECTS = {
    "smollm2-135m": Subject("smollm2-135m", "smollm2", chat=True),
    "gemma3-270m": Subject("gemma3-270m.Q4_K_M.gguf", "gemma3", chat=False),
    "qwen2.5-coder-0.5b": Subject("qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf", "qwen2.5", chat=True),
    "qwen2.5-coder-1.5b": Subject("qwen2.5-coder-1.5b-instruct.Q4_K_M.gguf", "qwen2.5", chat=True),
}

SPEC = FeatureSpec(k=10, transform="gap", classes=len(CLASSES), line_ends=True)
NETWORK = TrainSettings(hidden=64, learning_rate=3e-3, max_epochs=40, patience=6)


def train(asked: argparse.Namespace) -> None:
    """Train the universal evaluator on key segments of several models, and write it with its figures."""
    torch.set_num_threads(1)
    spec = dataclasses.replace(SPEC, previous=asked.previous, next=asked.next)
    sets = key_sets(asked, spec)
    network, scored = train_network(sets, spec, NETWORK)
    positions = " ".join(f"{each.partition('=')[0]}=POSITIONS" for each in asked.positions)
    window = f" --previous {asked.previous} --next {asked.next}" * ((asked.previous, asked.next) != (1, 1))
    network.provenance = {
        "models": sorted({each.model for each in sets}),
        "trained_on": "key segments of GSM8K's train answers",
        # `caw evaluate evaluator` leaves out documents that an evaluator was trained on
        "data": {"examples": sum(len(each.key) for each in sets), "datasets": ["gsm8k/train"], "line_ends": True,
                 "licence": ["GSM8K: MIT, (c) 2021 OpenAI, grade-school-math; no text is stored"]},
        "features": spec.to_dict(),
        "parameters": sum(p.numel() for p in network.parameters()),
        "metrics": {"settings": dataclasses.asdict(NETWORK), "sets": [each.row() for each in scored]},
        "command": f"python benchmarks/bench_universal.py train FOLDER --models MODELS --name {asked.name} "
        f"--positions {positions}{window}",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }  # fmt: skip
    path = asked.out / f"{asked.name}.safetensors"
    network.save(path)
    path.with_suffix(".json").write_text(json.dumps(network.provenance, indent=1) + "\n")


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


def texts(asked: argparse.Namespace) -> None:
    """Mark greedy texts under --policies (NAME=EVALUATOR:THETA:BETA, NAME=fixed:STRENGTH), each to its target."""
    torch.set_num_threads(1)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    subject, level = SUBJECTS[asked.model], KINDS_OF_TEXTS[asked.kind]
    known = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    known = [row for row in known if row["model"] == asked.model]
    wanted = [("none", 0), *((policy, key) for policy in asked.policies for key in range(asked.keys))]
    for policy, _ in wanted:
        refuse_another(known, made_by(asked, policy))
    done = {(row["policy"], row["key"], row["id"]) for row in known}
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
                row |= {
                    "made_by": made_by(asked, policy)[1],
                    "id": number,
                    "tokens": len(ids),
                    "p": caw.detect(text, tokenizer, tested, fpr=level).p_value,
                }
                if gold is not None:
                    row |= {"answer": answer_of(text), "right": grade_number(text, gold).correct}
                if judge is not None:
                    row["nats"] = judge(prompt, text)
                rows.append(row)
            with asked.out.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
        report([json.loads(line) for line in asked.out.read_text().splitlines()])


def made_by(asked: argparse.Namespace, policy: str) -> tuple[str, list[Any]]:
    """A policy's name, and what its rows depend on beside it."""
    name, _, said = policy.partition("=")
    return name, [said, asked.tokens, asked.judge]


def refuse_another(known: Sequence[dict[str, Any]], made: tuple[str, list[Any]]) -> None:
    """ValueError where a file has rows under a policy's name that were made otherwise; old rows do not say how."""
    name, how = made
    for row in known:
        if row["policy"] == name and row.get("made_by", how) != how:
            raise ValueError(f"rows of {name} must be of {how}, found {row['made_by']}; choose another name or file")


def asked_prompts(asked: argparse.Namespace, subject: Subject) -> list[tuple[str, str, str | None]]:
    """(name, prompt, right answer) of each prompt: train ones that no label is of, or test ones."""
    if asked.kind == "maths":
        task = GSM8K(
            "gsm8k", data=str(asked.data), split=asked.split, first=asked.first, count=asked.count, shots=SHOTS
        )
        return [(question.id, question.prompt, question.gold) for question in task.questions()]
    path = EVERYDAY if asked.split == "train" else OTHERS
    lines = path.read_text(encoding="utf-8").splitlines()
    lines = lines[LABELLED:][::-1] if asked.split == "train" else lines
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
    """Of every model, kind, split and policy: shares found, kept (both) and right, the rise in nats, with intervals."""
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


OWN = ("own", "own1", "own-cot")  # own1: at beta 1, the default of the demo model's
PAIRS = (  # unseen: `universal-answers` trained without the model's family
    *((one, other) for one in ("answers", "answers3", "unseen") for other in ("universal", *OWN, "fixed")),
    *((one, other) for one in ("universal", "universal3") for other in (*OWN, "fixed")),
    *((one, "fixed") for one in OWN),
    ("universal", "window00"),
)


def pairs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What one policy has over another on the same prompts and keys, with intervals; rise_ratio: first over second."""
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
        columns["kept"] = [kept(bare[row["id"]]["answer"], row["answer"]) for row in rows]
        columns["right"] = [row["right"] for row in rows]
        columns["both"] = [
            None if b is None else a and b for a, b in zip(columns["found"], columns["kept"], strict=True)
        ]
    if any(row.get("nats") is not None for row in rows):
        columns["nats"] = [row.get("nats") for row in rows]
        columns["rise"] = [
            None if row.get("nats") is None or bare[row["id"]].get("nats") is None
            else row["nats"] - bare[row["id"]]["nats"]
            for row in rows
        ]  # fmt: skip
    return {name: np.array(values, dtype=float) for name, values in columns.items()}


def kept(unmarked: str | None, marked: str | None) -> bool | None:
    """Whether the answer is the unmarked text's; None where that has none."""
    return None if unmarked is None else marked is not None and same_number(unmarked, marked)


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
    """Write the figures of each training, and of texts the summaries and pairs; --add keeps what the output has."""
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
    loading, sources = (argparse.ArgumentParser(add_help=False) for _ in range(2))
    loading.add_argument("out", type=Path, help="folder of the evaluator, or JSONL of texts")
    loading.add_argument("--models", type=Path, required=True)
    sources.add_argument("--data", type=Path, required=True)
    commands = parser.add_subparsers(dest="what", required=True)
    own = commands.add_parser("train", parents=[loading])
    own.add_argument("--positions", nargs="+", required=True, help="MODEL=FOLDER of stored positions")
    own.add_argument("--previous", type=int, default=1)
    own.add_argument("--next", type=int, default=1)
    own.add_argument("--name", default="universal", help="of the file")
    own.set_defaults(run=train)
    own = commands.add_parser("texts", parents=[loading, sources])
    own.add_argument("--model", default="qwen2.5-coder-0.5b")
    own.add_argument("--kind", choices=KINDS_OF_TEXTS, default="maths")
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
