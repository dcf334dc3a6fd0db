"""Greedy everyday texts under several policies with a target: how many are found, and what the marked tokens cost.

    python benchmarks/bench_everyday_policies.py MODELS --models smollm2 qwen05 gemma270m --out r.json

KGW, each text marked until its p-value would be 5e-4 (half of 0.1 %, as `caw.Recommended` asks), at most 200 tokens,
found = at most 1e-3 by the detector without model or prompt. Prompts of
`caw_lab/training/everyday_prompts.jsonl` from the 141st on. Nats: -log p a
token of a whole text under the model that wrote it, mean over texts, and its rise over the
unmarked text of the same prompt with a 95 % bootstrap interval over prompts, of whose keys the mean is taken.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_cost import SUBJECTS, Chunk, coded, prompts_of

import caw
from caw.benchmark.machine import about
from caw.io.files import write_text
from caw.models.teacher import log_probs

LEVEL, TOKENS = 1e-3, 200
TARGET = caw.Recommended(0).level_of_each(LEVEL)


def policies(own: str | None) -> dict[str, caw.CapacityPolicy | caw.FixedStrength]:
    """The policies to compare; own: the model's evaluator."""
    named: dict[str, Any] = {
        "fixed": caw.FixedStrength(target=TARGET),
        "universal": caw.CapacityPolicy("universal", target=TARGET),
    }
    return named if own is None else {**named, "own": caw.CapacityPolicy(own, target=TARGET)}


def nats_of(model: Any, prompts: list[list[int]], texts: list[list[int]]) -> np.ndarray:
    """-log p a token of each text, float64 [texts]."""
    read = log_probs(model, [([*p, *t], len(p)) for p, t in zip(prompts, texts, strict=True)])
    return np.array([-float(each.mean()) if len(each) else 0.0 for each in read])


def measured(name: str, folder: Path, count: int, keys: int) -> list[dict[str, Any]]:
    """A row for each policy of a model."""
    subject = SUBJECTS[name]
    file = folder / subject.source
    model, tokenizer = caw.load_model(
        str(file) if file.is_file() else subject.source, quantization=subject.quantization
    )
    prompts = coded(name, tokenizer, prompts_of(Chunk(name, 0.0, "", 1))[:count])
    asked: dict[str, Any] = {"max_new_tokens": TOKENS, "batch_size": 24, "return_trace": False, "progress": False}
    plain = nats_of(model, prompts, caw.generate(model, tokenizer, prompts, **asked).sequences)
    rows = []
    for policy, how in policies(subject.evaluator).items():
        found, nats = 0, []
        for key in range(keys):
            mark = caw.KGW(f"everyday policies {key}")
            texts = caw.generate(model, tokenizer, prompts, watermark=mark, policy=how, **asked).sequences
            found += sum(result.p_value <= LEVEL for result in caw.detect(texts, None, mark))
            nats.append(nats_of(model, prompts, texts))
        rises = np.mean(nats, 0) - plain
        means = np.random.default_rng(0).choice(rises, (4000, len(rises))).mean(1)
        rows.append({
            "model": name, "policy": policy, "texts": keys * len(prompts), "found": found,
            "unmarked": round(float(plain.mean()), 3), "rise": round(float(rises.mean()), 3),
            "rise_ci": [round(float(q), 3) for q in np.quantile(means, (0.025, 0.975))],
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="+", default=list(SUBJECTS))
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--keys", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    rows = [row for name in asked.models for row in measured(name, asked.folder, asked.count, asked.keys)]
    write_text(asked.out, json.dumps({**about(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
