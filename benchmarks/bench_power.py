"""How many tokens a text must have to be found: share of marked texts found by length, expected and measured.

    python benchmarks/bench_power.py --texts marked.jsonl [--keys 2] [--out r.json]

Greedy texts of the demo model (chat template, 24 everyday prompts, at most 400 tokens) under KGW (delta 2.5) and EXP
(top_k 10) at full strength, and KGW under CAW (theta 0.8, beta 1.5). They are generated into --texts once. A row of a
length has the texts that are as long, cut there; keys are pooled. The table of one key's own texts is `caw detect
--power`. Repeated evidence counts once: loops add none.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

import caw
from caw.benchmark.machine import about
from caw.detection import Detector
from caw.detection.power import expected_power
from caw.models import DEMO_MODEL
from caw.watermarks import EXP, KGW, Watermark

DELTA, THETA, BETA, TOKENS = 2.5, 0.8, 1.5, 400
LENGTHS, RATES = (25, 50, 100, 150, 200, 400), (1e-3, 1e-5)
NAMES = {"kgw": "KGW, full strength", "exp": "EXP, full strength", "kgw+caw": "KGW under CAW"}
PROMPTS = (
    "Tell me about the history of tea.",
    "Describe how bread is made, from grain to loaf.",
    "Write a short letter to a friend about a week in the mountains.",
    "Explain to a child why the sky is blue.",
    "Give advice to someone who is moving to a new city.",
    "What can I do in Rome in three days?",
    "Write a story about a lighthouse keeper who finds a message in a bottle.",
    "How does a bicycle stay upright?",
    "Describe a typical day of a farmer in spring.",
    "What are the benefits of learning a second language?",
    "Explain how a library organises its books.",
    "Write a product description of a wooden chair.",
    "How do I prepare for a job interview?",
    "Tell me about the life of bees.",
    "Describe the water cycle.",
    "What should I consider before adopting a dog?",
    "Write a speech for a school's opening day.",
    "Why do leaves change colour in autumn?",
    "Explain what inflation is.",
    "Describe a train journey through the Alps.",
    "How can a small shop attract more customers?",
    "Tell me about the invention of the printing press.",
    "Write a diary entry of a sailor at sea.",
    "What makes a good friend?",
)


def watermark_of(name: str, key: str) -> Watermark:
    return EXP(key=key) if name == "exp" else KGW(key=key, delta=DELTA)


def generate(path: Path, keys: int) -> None:
    """Write the texts, a line each: {"how", "key", "tokens", "text"}."""
    model, tokenizer = caw.load_model(DEMO_MODEL, dtype="float32")
    policy = caw.CapacityPolicy(DEMO_MODEL, theta=THETA, beta=BETA)
    with path.open("w", buffering=1) as out:
        for key in (f"power {number}" for number in range(keys)):
            for how in NAMES:
                result = caw.generate(
                    model, tokenizer, list(PROMPTS), chat=True, watermark=watermark_of(how, key),
                    policy=policy if how == "kgw+caw" else None, max_new_tokens=TOKENS, batch_size=24,
                    return_trace=False, progress=False,
                )  # fmt: skip
                for tokens, text in zip(result.sequences, result.texts, strict=True):
                    out.write(json.dumps({"how": how, "key": key, "tokens": tokens, "text": text}) + "\n")
                print(f"{key}, {NAMES[how]}: {sum(map(len, result.sequences))} tokens", flush=True)


def read_texts(path: Path, keys: int) -> dict[str, list[dict[str, Any]]]:
    """The rows of `path` by watermark; generated first where it does not exist."""
    if not path.exists():
        generate(path, keys)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {how: [row for row in rows if row["how"] == how] for how in NAMES}


def measure(mine: list[dict[str, Any]], how: str) -> list[dict[str, Any]]:
    """Rows of one watermark: by length and rate, expected and measured share found, 95 % interval, texts, counted."""
    detectors = {key: Detector(None, watermark_of(how, key)) for key in {row["key"] for row in mine}}
    whole = [r for key, d in detectors.items() for r in d([row["tokens"] for row in mine if row["key"] == key])]  # type: ignore[union-attr]
    mean = sum(r.score for r in whole) / sum(r.num_scored for r in whole)
    found = []
    for length in LENGTHS:
        results = [detectors[r["key"]](r["tokens"][:length]) for r in mine if len(r["tokens"]) >= length]
        if not results:
            continue
        counted = float(np.mean([r.num_scored for r in results]))  # type: ignore[union-attr]
        for fpr in RATES:
            hits = sum(r.p_value <= fpr for r in results)  # type: ignore[union-attr]
            interval = stats.binomtest(hits, len(results)).proportion_ci(method="exact")
            expected = expected_power(watermark_of(how, "any"), mean, counted, fpr)
            found.append({"watermark": NAMES[how], "prompts": "everyday", "tokens": length, "fpr": fpr,
                          "mean_score": mean,
                          "counted": counted, "expected": expected, "measured": hits / len(results),
                          "low": float(interval.low), "high": float(interval.high),
                          "texts": len(results)})  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--keys", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    texts = read_texts(options.texts, options.keys)
    rows = [row for how, mine in texts.items() if mine for row in measure(mine, how)]
    for row in rows:
        print(
            f"{row['watermark']:18s} {row['tokens']:4d} tokens ({row['counted']:.0f} count), FPR "
            f"{row['fpr']:g}: expected {row['expected']:.3f}, measured {row['measured']:.3f} "
            f"({row['low']:.3f} - {row['high']:.3f}) of {row['texts']}"
        )
    if options.out:
        command = "python benchmarks/bench_power.py --texts marked.jsonl"
        said = {"command": command, "delta": DELTA, "theta": THETA, "beta": BETA, **about()}
        options.out.write_text(json.dumps({**said, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
