"""What a model that reads the text adds to detection: share found by length, and false alarms of unmarked texts.

    python benchmarks/bench_model_weights.py --folder F                         # marked texts, levels, table
    python benchmarks/bench_model_weights.py --folder F --null --data-dir DATA    # 5 keys x 1,000 unmarked texts
    [--arms kgw,caw] [--prompts 12] [--tokens 200] [--texts 1000] [--seconds 540] [--out r.json]
    [--model NAME --evaluator NAME --prompts-file prompts.jsonl --stop "Question:"]   # a folder F of its own
    [--reader NAME --reader-evaluator NAME]   # another model of the family reads what --model wrote

Greedy texts of the demo model (chat template, everyday prompts; those of a file have no template) under four keys: two
keys have the first prompts, two the last ones. Each text is read with its prompt, without it, and without it by a
calibration that is learned from the two keys and prompts of the other half. Unmarked texts are people's solutions of
GSM8K questions (train), read behind their questions. Their rates under one key vary with the phrases they share, and
further --keys cost no pass. Everything is appended to files in F and never made again; with --seconds a run stops in
time without a table (exit code 1), and the same command goes on; --seconds 0 makes the table of what is there. Levels
are causal: those of a text cut short are the beginning of the whole text's, but for the last token, whose capacity sees
the one behind it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_detection import PROMPTS
from scipy import stats

import caw
from caw.benchmark.machine import about
from caw.detection.expected_signal import Reading, expected_signal, levels_of_signal
from caw.detection.token_scores import score_texts
from caw.detection.weights import weighted_tails
from caw.models import DEMO_MODEL
from caw.models.teacher import forward
from caw.models.text_reading import first_row, reading
from caw.policies import Policy, Target
from caw.watermarks import EXP, KGW, Unigram, Watermark
from caw_lab.training.fit_calibration import fit_calibration

KEYS = tuple(f"model weights {n}" for n in range(4))
LENGTHS, POWER_RATES, NULL_RATES = (25, 50, 100, 200), (1e-2, 1e-3), (1e-1, 1e-2, 1e-3)
READERS = ("none", "prompt", "no prompt", "calibrated")


def _caw(evaluator: str) -> Policy:
    return caw.CapacityPolicy(evaluator, 0.8, 1.5)


def _loop(evaluator: str) -> Policy:
    return caw.CapacityPolicy(evaluator, target=Target(1e-2))


# name, watermark of a key, policy with the evaluator of a name
ARMS: dict[str, tuple[str, Callable[[str], Watermark], Callable[[str], Policy]]] = {
    "kgw": ("KGW, delta 1", lambda key: KGW(key, delta=1.0), lambda _: caw.FixedStrength()),
    "entropy": ("KGW, delta 4 above 1 nat", lambda key: KGW(key, delta=4.0), lambda _: caw.EntropyThreshold(1.0)),
    "caw": ("KGW under CAW", lambda key: KGW(key, delta=2.5), _caw),
    "loop": ("KGW under CAW, closed loop", lambda key: KGW(key, delta=4.0), _loop),
    "unigram": ("Unigram, delta 2", lambda key: Unigram(key, delta=2.0), lambda _: caw.FixedStrength()),
    "unigram-caw": ("Unigram under CAW", lambda key: Unigram(key, delta=2.5), _caw),
    "unigram-loop": ("Unigram under CAW, closed loop", lambda key: Unigram(key, delta=4.0), _loop),
    "exp": ("EXP, top 3", lambda key: EXP(key, top_k=3), lambda _: caw.FixedStrength()),
    "exp-caw": ("EXP under CAW", lambda key: EXP(key, top_k=10), lambda name: caw.CapacityPolicy(name)),
    "exp-loop": ("EXP under CAW, closed loop", lambda key: EXP(key, top_k=10), _loop),
}  # fmt: skip


@dataclass(frozen=True)
class Setup:
    """The model that writes and the one that reads, each with its tokenizer and the name of its evaluator, and how the
    first is asked."""

    loaded: tuple[Any, Any]
    evaluator: str
    reader: tuple[Any, Any]
    reader_evaluator: str
    prompts: list[str]
    chat: bool
    stop: str | None

    def of(self, key: int, count: int) -> list[str]:
        """The prompts of a key: the first ones, or the last."""
        return self.prompts[:count] if key < 2 else self.prompts[-count:]


@dataclass(frozen=True, eq=False)
class Once(caw.ReaderWeights):
    """Weights that read a text once, for levels, for a calibration and with it."""

    read: dict[bytes, Reading] = field(default_factory=dict, repr=False)

    def reading(self, text: np.ndarray) -> Reading:
        name = text.tobytes()
        if name not in self.read:
            self.read[name] = super().reading(text)
        return self.read[name]

    def with_prompt(self, prompt: Any) -> caw.ReaderWeights:
        return caw.ReaderWeights(self.model, self.tokenizer, prompt, self.policy, self.chat)


class OutOfTimeError(Exception):
    """What is written stays; the same command goes on."""


class Store:
    """Rows of a JSONL file by name, appended one by one. deadline: when to stop making new ones."""

    def __init__(self, path: Path, deadline: float) -> None:
        self.path, self.deadline = path, deadline
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        # a run that was killed may have left half a line
        self.rows = {row["name"]: row for row in (json.loads(line) for line in lines if line.endswith("\n"))}
        if lines and not lines[-1].endswith("\n"):
            path.write_text("".join(lines[:-1]))

    def add(self, name: str, **values: Any) -> dict[str, Any]:
        row = {"name": name, **values}
        with self.path.open("a") as out:
            out.write(json.dumps(row) + "\n")
        self.rows[name] = row
        return row

    def check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise OutOfTimeError


def marked_texts(store: Store, arms: list[str], count: int, tokens: int, setup: Setup) -> None:
    """Rows arm/key/number: prompt, tokens. One call of `generate` for an arm and key."""
    for arm in arms:
        _, mark, policy = ARMS[arm]
        for key, secret in enumerate(KEYS):
            prompts = setup.of(key, count)
            if all(f"{arm}/{key}/{n}" in store.rows for n in range(count)):
                continue
            store.check_time()
            out = caw.generate(
                *setup.loaded, prompts, chat=setup.chat, watermark=mark(secret), policy=policy(setup.evaluator),
                max_new_tokens=tokens, batch_size=count, return_trace=False, progress=False, stop=setup.stop,
            )  # fmt: skip
            for n, (prompt, ids) in enumerate(zip(prompts, out.sequences, strict=True)):
                store.add(f"{arm}/{key}/{n}", prompt=prompt, tokens=ids)
            print(f"made {arm}, key {key}", flush=True)


def texts_of(store: Store, arm: str, keys: tuple[int, ...]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, row) for name, row in store.rows.items() if name.startswith(tuple(f"{arm}/{k}/" for k in keys))]


def marked_levels(store: Store, texts: Store, arm: str, setup: Setup) -> None:
    """Rows arm/key/number/reader: the levels of each text."""
    mark, policy = ARMS[arm][1], ARMS[arm][2](setup.reader_evaluator)
    reader, bare = (Once(*setup.reader, None, policy, chat=chat) for chat in (setup.chat, False))
    for mine, others in (((0, 1), (2, 3)), ((2, 3), (0, 1))):
        todo = [(f"{name}/{how}", row, how) for name, row in texts_of(texts, arm, mine) for how in READERS[1:]]
        todo = [entry for entry in todo if entry[0] not in store.rows]
        calibrated = None
        for name, row, how in todo:
            store.check_time()
            if how == "calibrated" and calibrated is None:
                given = {mark(KEYS[k]): [r["tokens"] for _, r in texts_of(texts, arm, (k,))] for k in others}
                calibrated = replace(bare, calibration=fit_calibration(given, bare, progress=False))
            weights = {"prompt": reader.with_prompt(row["prompt"]), "no prompt": bare}.get(how, calibrated)
            assert weights is not None
            [levels] = weights.text_levels([np.array(row["tokens"])], mark(KEYS[0]))
            store.add(name, levels=levels.tolist())
        print(f"read {arm}, keys {mine}", flush=True)


def p_value(watermark: Watermark, ids: np.ndarray, levels: np.ndarray) -> float:
    values, counted, _, owner = score_texts(watermark, [ids], "exact")
    return float(weighted_tails(watermark, values, levels, owner, counted & (levels > 0), 1)[1].p_values[0])


def power_rows(levels: Store, texts: Store, arms: list[str]) -> Iterator[dict[str, Any]]:
    for arm in arms:
        for how in READERS:
            for length in LENGTHS:
                found = []
                for key, secret in enumerate(KEYS):
                    for name, row in texts_of(texts, arm, (key,)):
                        ids = np.array(row["tokens"][:length])
                        if len(ids) < length or (how != "none" and f"{name}/{how}" not in levels.rows):
                            continue
                        own = np.ones(length, int) if how == "none" else levels.rows[f"{name}/{how}"]["levels"][:length]
                        found.append(p_value(ARMS[arm][1](secret), ids, np.array(own)))
                yield from rates({"arm": ARMS[arm][0], "reader": how, "length": length}, found, POWER_RATES)


def rates(of: dict[str, Any], p_values: list[float], levels: tuple[float, ...]) -> Iterator[dict[str, Any]]:
    p = np.array(p_values)
    for level in levels if len(p) else ():
        hits = int((p <= level).sum())
        interval = stats.binomtest(hits, len(p)).proportion_ci(method="exact")
        median = float(np.median(np.log10(np.maximum(p, 1e-300))))
        yield {**of, "fpr": level, "texts": len(p), "rate": hits / len(p), "low": float(interval.low),
               "high": float(interval.high), "median_log10_p": median}  # fmt: skip


def unmarked(data_dir: Path, count: int) -> list[dict[str, str]]:
    lines = (data_dir / "gsm8k" / "train.jsonl").read_text().splitlines()[:count]
    return [json.loads(line) for line in lines]


def null_levels(store: Store, arms: list[str], rows: list[dict[str, str]], setup: Setup) -> None:
    """Rows null/number/reader: ids, and levels of each arm; one pass for all arms, those of an earlier run kept."""
    model, tokenizer = setup.reader
    policies = {arm: ARMS[arm][2](setup.reader_evaluator) for arm in arms}
    for number, row in enumerate(rows):
        ids = np.array(tokenizer(row["answer"], add_special_tokens=False)["input_ids"])
        for how, question in (("prompt", row["question"]), ("no prompt", None)):
            name = f"null/{number}/{how}"
            levels = dict(store.rows.get(name, {}).get("levels", {}))
            todo = [arm for arm in arms if arm not in levels]
            if not todo:
                continue
            store.check_time()
            prompt = caw.ReaderWeights(model, tokenizer, question, chat=setup.chat and question is not None).prompt_ids
            first = first_row(prompt)
            with torch.inference_mode():
                logits, start = forward(model, [[*prompt, *ids.tolist()]], first - 1)
            said: dict[Any, Reading] = {}  # arms of one policy share it
            for arm in todo:
                mark, policy = ARMS[arm][1](KEYS[0]), policies[arm]
                if policy not in said:
                    said[policy] = reading(logits[0, first - 1 - start :], len(prompt) - first, ids, policy)
                signal = expected_signal(said[policy], mark, question is not None)
                levels[arm] = levels_of_signal(signal, mark).tolist()
            store.add(name, tokens=ids.tolist(), levels=levels)


def null_rows(store: Store, arms: list[str], keys: int) -> Iterator[dict[str, Any]]:
    for arm in arms:
        for how in READERS[1:3]:
            rows = [r for n, r in store.rows.items() if n.startswith("null/") and n.endswith(f"/{how}")]
            rows = [r for r in rows if arm in r["levels"]]
            pooled = []
            for key in (f"null {n}" for n in range(keys)):
                mark = ARMS[arm][1](key)
                found = [p_value(mark, np.array(r["tokens"]), np.array(r["levels"][arm])) for r in rows]
                pooled += found
                yield from rates({"arm": ARMS[arm][0], "reader": how, "key": key}, found, NULL_RATES)
            yield from rates({"arm": ARMS[arm][0], "reader": how, "key": "all keys"}, pooled, NULL_RATES)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--null", action="store_true")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--model", default=DEMO_MODEL)
    parser.add_argument("--evaluator", default=DEMO_MODEL)
    parser.add_argument("--reader")
    parser.add_argument("--reader-evaluator")
    parser.add_argument("--prompts-file", type=Path)
    parser.add_argument("--stop")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--keys", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    options = read_options()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    deadline, arms = time.monotonic() + options.seconds, options.arms.split(",")
    kept = "levels" if options.reader is None else f"levels-{Path(options.reader).stem}"
    texts, levels = (Store(options.folder / f"{name}.jsonl", deadline) for name in ("texts", kept))
    lines = [] if options.prompts_file is None else options.prompts_file.read_text().splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines] or list(PROMPTS)
    loaded = caw.load_model(options.model)
    reads = loaded if options.reader is None else caw.load_model(options.reader)
    named = options.reader_evaluator or options.evaluator
    setup = Setup(loaded, options.evaluator, reads, named, prompts, not lines, options.stop)
    complete = True
    try:
        if options.null:
            null_levels(levels, arms, unmarked(options.data_dir, options.texts), setup)
        else:
            marked_texts(texts, arms, options.prompts, options.tokens, setup)
            for arm in arms:
                marked_levels(levels, texts, arm, setup)
    except OutOfTimeError:
        complete = False
        if options.seconds > 0:
            sys.exit("out of time: the same command goes on")
    rows = list(null_rows(levels, arms, options.keys) if options.null else power_rows(levels, texts, arms))
    for row in rows:
        where = row.get("key") or f"{row['length']} tokens"
        print(
            f"{row['arm']:28s} {row['reader']:10s} {where:12s} FPR {row['fpr']:g}: {row['rate']:.3f} "
            f"({row['low']:.3f} - {row['high']:.3f}) of {row['texts']}"
        )
    if options.out:
        command = shlex.join(["python", "benchmarks/bench_model_weights.py", *sys.argv[1:]])
        said = {
            "command": command,
            "model": options.model,
            "reader": options.reader or options.model,
            "complete": complete,
            **about(),
        }
        options.out.write_text(json.dumps({**said, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
