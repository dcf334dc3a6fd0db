"""What the look-ahead is worth: evaluators of windows (1, 1), (1, 0) and (0, 0), by labels and in whole texts.

    python benchmarks/bench_look_ahead.py labels runs/look-ahead --data DATA --models FOLDER
    python benchmarks/bench_look_ahead.py texts runs/look-ahead --data DATA --models FOLDER
    python benchmarks/bench_look_ahead.py gather runs/look-ahead --output benchmarks/results/look_ahead.json

FOLDER holds the GGUF files named below. `labels`: every model reads answers of GSM8K whose key segments are labelled;
for each window networks are trained on four fifths of the documents and measured on the other one, in turn. `texts`:
one model answers questions of the train split, greedily, without a mark and under CAW with each window until its
target. Both can be stopped and continued. Results hold numbers and no texts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import caw
from caw.benchmark.machine import about
from caw.decoding.prompts import encode_prompts
from caw.models.facts import ModelFacts
from caw.models.teacher import log_probs
from caw_lab.evaluation.metrics.accuracy import wilson
from caw_lab.evaluation.tasks.gsm8k import GSM8K
from caw_lab.training.labels import LabelledText
from caw_lab.training.metrics import auroc, document_interval, gain_interval
from caw_lab.training.pipeline import default_specs, labelled, protect_line_ends, stored_positions, table_for
from caw_lab.training.positions import Positions
from caw_lab.training.settings import QUICK, LabelFile, Reading
from caw_lab.training.train import fit, predict, train

# each model's source, how its weights are read, and how many of the labelled documents
MODELS: dict[str, tuple[str, str, str | None, int]] = {
    "smollm2-135m": ("smollm2-135m", "bfloat16", None, 700),
    "qwen2.5-coder-0.5b": ("qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf", "float32", "file-fast", 350),
    "gemma3-270m": ("gemma3-270m.Q4_K_M.gguf", "float32", "file-fast", 250),
    "qwen2.5-coder-1.5b": ("qwen2.5-coder-1.5b-instruct.Q4_K_M.gguf", "float32", "file-fast", 200),
}
WINDOWS = {"11": (1, 1), "10": (1, 0), "00": (0, 0)}
PAIRS = (("11", "10"), ("10", "00"), ("11", "00"))
FOLDS = 5
TRANSFORM = "log"
WRITER, SHOTS, STOP, TOKENS = "qwen2.5-coder-0.5b", 5, "Question:", 200
DELTA, THETA, LEVEL, BATCH = 4.0, 0.9, 0.01, 32
FIRST = 3000  # of the questions of the train split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    for name, work in (("labels", labels), ("texts", texts)):
        own = commands.add_parser(name)
        own.add_argument("folder", type=Path)
        own.add_argument("--data", type=Path, required=True)
        own.add_argument("--models", type=Path, required=True)
        own.set_defaults(run=work)
        if name == "labels":
            own.add_argument("--only", nargs="*", choices=list(MODELS), default=list(MODELS))
        else:
            own.add_argument("--count", type=int, default=128)
            own.add_argument("--keys", type=int, default=1)
            own.add_argument("--betas", type=float, nargs="*", default=[2.0])
    own = commands.add_parser("gather")
    own.add_argument("folder", type=Path)
    own.add_argument("--output", type=Path)
    own.set_defaults(run=gather)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.run(asked)


# ---- labels ----------------------------------------------------------------------------------------------------------
def reading_of(name: str, models: Path, folder: Path) -> Reading:
    source, dtype, quantization, _ = MODELS[name]
    place = str(models / source) if source.endswith(".gguf") else source
    return Reading(place, folder=folder / name, dtype=dtype, quantization=quantization, device="cpu")


def documents_of(name: str, data: Path) -> list[LabelledText]:
    every = labelled(LabelFile(data / "key_segments" / "gsm8k_train.jsonl", data))
    return every[: MODELS[name][3]]


def labels(asked: argparse.Namespace) -> None:
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name in asked.only:
        out = asked.folder / f"{name}.json"
        if out.exists():
            continue
        reading = reading_of(name, asked.models, asked.folder)
        with stored_positions(reading, documents_of(name, asked.data), progress=False) as stored:
            positions = protect_line_ends(stored, reading.model)
            row = {"model": name, "documents": MODELS[name][3], **measured(positions, reading.model)}
        out.write_text(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def measured(positions: Positions, model: Any) -> dict[str, Any]:
    """AUROC of each window, every document held out once, and its differences on the same draws of documents."""
    scores = {window: held_out(positions, model, WINDOWS[window]) for window in WINDOWS}
    every, agree = np.arange(len(positions)), np.flatnonzero(positions.agree)
    found: dict[str, Any] = {"tokens": len(positions), "key": round(float(positions.key.mean()), 4)}
    for part, tokens in (("all", every), ("agree", agree)):
        found[part] = {
            window: [
                round(auroc(positions.key[tokens], score[tokens]), 4),
                *document_interval(positions, score, tokens),
            ]
            for window, score in scores.items()
        }
        found[part] |= {
            f"{a}-{b}": [
                round(found[part][a][0] - found[part][b][0], 4),
                *gain_interval(positions, scores[a], scores[b], tokens),
            ]
            for a, b in PAIRS
        }
    return found


def held_out(positions: Positions, model: Any, window: tuple[int, int]) -> np.ndarray:
    """Capacities float32 [N], each by a network that has not seen the token's document."""
    spec = next(s for s in default_specs(*window) if s.transform == TRANSFORM)
    table = table_for(model, positions, spec.line_ends)
    features = positions.features(spec, np.arange(len(positions)), table)
    key = torch.from_numpy(positions.key).float()
    of_name = np.array([zlib.crc32(name.encode()) for name in positions.meta["documents"]])
    turn = of_name[np.asarray(positions.arrays["document"])]
    score = np.zeros(len(positions), np.float32)
    for fold in range(FOLDS):
        test = turn % FOLDS == fold
        stop = ~test & (turn // FOLDS % 6 == 0)  # a sixth of the others says when training ends
        own, last = (torch.from_numpy(np.flatnonzero(rows)) for rows in (~test & ~stop, stop))
        network, _ = fit(features[own], key[own], features[last], key[last], spec, QUICK, table)
        score[test] = predict(network, features[torch.from_numpy(np.flatnonzero(test))])
    return score


# ---- whole texts -----------------------------------------------------------------------------------------------------
def evaluators(asked: argparse.Namespace) -> dict[str, Path]:
    """Networks of the writer, trained alike on the same documents; its own shipped one has seen more of them."""
    found = {window: asked.folder / f"{WRITER}.{window}.safetensors" for window in WINDOWS}
    reading = reading_of(WRITER, asked.models, asked.folder)
    if not all(path.exists() for path in found.values()):
        with stored_positions(reading, documents_of(WRITER, asked.data), progress=False) as stored:
            positions = protect_line_ends(stored, reading.model)
            for window, path in found.items():
                spec = next(s for s in default_specs(*WINDOWS[window]) if s.transform == TRANSFORM)
                network, figures = train(positions, spec, QUICK, table_for(reading.model, positions, spec.line_ends))
                network.provenance = {"model": WRITER, "metrics": figures}
                network.save(path)
    return found


def key_of(number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"caw/look-ahead/{number}".encode()).digest()[:8], "big")


def texts(asked: argparse.Namespace) -> None:
    networks, out = evaluators(asked), asked.folder / "texts.jsonl"
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["way"], row["beta"], row["key"], row["id"]) for row in rows}
    source, _, quantization, _ = MODELS[WRITER]
    model, tokenizer = caw.load_model(str(asked.models / source), device="cpu", quantization=quantization)
    facts = ModelFacts.of(model, tokenizer)
    task = GSM8K("gsm8k", data=str(asked.data), split="train", first=FIRST, count=asked.count, shots=SHOTS)
    questions = task.questions()
    ids = dict(
        zip((q.id for q in questions), encode_prompts(tokenizer, [q.prompt for q in questions], facts), strict=True)
    )
    marked = [(window, beta, key) for key in range(asked.keys) for beta in asked.betas for window in WINDOWS]
    for start in range(0, len(questions), BATCH):
        cache = caw.PromptCache()
        for way, beta, key in [("none", 0.0, 0), *marked]:
            some = [q for q in questions[start : start + BATCH] if (way, beta, key, q.id) not in done]
            if not some:
                continue
            mark = caw.KGW(key=key_of(key), gamma=0.25, delta=DELTA)
            policy = None if way == "none" else caw.CapacityPolicy(networks[way], THETA, beta, target=LEVEL)
            made = caw.generate(
                model, tokenizer, [ids[q.id] for q in some], watermark=None if policy is None else mark, policy=policy,
                max_new_tokens=TOKENS, stop=STOP, batch_size=BATCH, prompt_cache=cache, progress=False,
                return_trace=False,
            )  # fmt: skip
            pairs = zip(some, made.sequences, strict=True)
            read = log_probs(model, [([*ids[q.id], *new], len(ids[q.id])) for q, new in pairs], share=True)
            with out.open("a") as file:
                for question, text, new, said in zip(some, made.texts, made.sequences, read, strict=True):
                    graded = task.grade(text, question.gold)
                    file.write(json.dumps({
                        "way": way, "beta": beta, "key": key, "id": question.id, "tokens": len(new),
                        "p": float(f"{caw.detect(text, tokenizer, mark, fpr=LEVEL).p_value:.4g}"),
                        "answer": graded.answer, "right": graded.correct, "nats": round(float(-said.mean()), 4),
                    }) + "\n")  # fmt: skip
        for line in summary([json.loads(line) for line in out.read_text().splitlines()]):
            print(json.dumps(line), flush=True)


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each window and beta: shares kept and found with Wilson's intervals, nats, paired differences of windows."""
    plain = {row["id"]: row for row in rows if row["way"] == "none"}
    ways: dict[tuple[float, str], dict[tuple[int, str], dict[str, Any]]] = {}
    for row in rows:
        if row["way"] != "none" and row["id"] in plain:
            ways.setdefault((row["beta"], row["way"]), {})[row["key"], row["id"]] = row

    def figures(row: dict[str, Any]) -> tuple[float, float, float]:
        base = plain[row["id"]]
        kept = row["answer"] is not None and row["answer"] == base["answer"]
        return float(kept), float(row["p"] <= LEVEL), row["nats"] - base["nats"]

    found = []
    for (beta, way), own in sorted(ways.items()):
        kept, seen, nats = (np.array(column) for column in zip(*map(figures, own.values()), strict=True))
        line: dict[str, Any] = {"beta": beta, "window": way, "texts": len(own)}
        for name, values in (("kept", kept), ("found", seen)):
            line[name] = [
                round(float(values.mean()), 4),
                *(round(end, 4) for end in wilson(int(values.sum()), len(own))),
            ]
        line["nats"] = [round(float(nats.mean()), 4), *interval(nats, [k[1] for k in own])]
        line["right"] = round(float(np.mean([row["right"] for row in own.values()])), 4)
        for other in WINDOWS:
            theirs = ways.get((beta, other), {})
            both = sorted(own.keys() & theirs.keys())
            if other == way or not both or (way, other) not in PAIRS:
                continue
            gaps = np.array([np.subtract(figures(own[k]), figures(theirs[k])) for k in both])
            for number, name in enumerate(("kept", "found", "nats")):
                mean = round(float(gaps[:, number].mean()), 4)
                line[f"{name} over {other}"] = [mean, *interval(gaps[:, number], [k[1] for k in both])]
        found.append(line)
    return found


def interval(values: np.ndarray, names: Sequence[str], resamples: int = 2000) -> list[float]:
    """95 % bootstrap of the mean; the texts of one question are drawn together."""
    groups: dict[str, list[float]] = {}
    for value, name in zip(values.tolist(), names, strict=True):
        groups.setdefault(name, []).append(value)
    means, sizes = np.array([sum(g) for g in groups.values()]), np.array([len(g) for g in groups.values()])
    drawn = np.random.default_rng(0).integers(len(groups), size=(resamples, len(groups)))
    return [round(float(end), 4) for end in np.percentile(means[drawn].sum(1) / sizes[drawn].sum(1), [2.5, 97.5])]


def gather(asked: argparse.Namespace) -> None:
    models = [json.loads(path.read_text()) for name in MODELS if (path := asked.folder / f"{name}.json").exists()]
    path = asked.folder / "texts.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    plain = [row for row in rows if row["way"] == "none"]
    settings = {
        "model": WRITER, "delta": DELTA, "theta": THETA, "level": LEVEL, "questions": len(plain),
        "right": round(float(np.mean([row["right"] for row in plain])), 4) if plain else None,
        "nats": round(float(np.mean([row["nats"] for row in plain])), 4) if plain else None,
    }  # fmt: skip
    command = "python benchmarks/bench_look_ahead.py {labels,texts} FOLDER --data DATA --models MODELS"
    found, marked = {**about(), "command": command, "labels": models}, summary(rows)
    if marked:
        found["texts"] = {**settings, "rows": marked}
    for row in [*models, *marked]:
        print(json.dumps(row))
    if asked.output is not None:
        asked.output.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
