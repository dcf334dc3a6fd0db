"""Texts sampled at low temperatures: found share and nats under a race, under green lists, and without a mark.

    python benchmarks/bench_cool_texts.py runs/cool.jsonl [--out benchmarks/results/cool_texts.json]

The first eight everyday prompts to the demo model with its chat template, up to 200 tokens, two keys, four from 0.3 on.
"lists": what `caw.Recommended` does below `LEAST_RACED`. "race": its race at full strength. All are tested by the
detector of both families at 0.001; nats a token are under the model at temperature 1. Cells that the JSONL file has are
not made again; it holds no texts.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import caw
from caw import settings
from caw.benchmark.machine import about
from caw.decoding.prompts import encode_prompts
from caw.models import DEMO_MODEL
from caw.models.facts import ModelFacts
from caw.models.teacher import log_probs
from caw_lab.evaluation.metrics.accuracy import wilson
from caw_lab.training.own_texts import EVERYDAY

TEMPERATURES, WARM, PROMPTS, TOKENS, LEVEL = (0.05, 0.1, 0.2, 0.29, 0.3, 0.4, 0.5, 0.6), 0.3, 8, 200, 1e-3


def ways(key: int) -> dict[str, dict[str, Any]]:
    mark = caw.Recommended(key)
    return {
        "lists": {"watermark": mark},
        "race": {"watermark": mark.drawn, "policy": caw.FixedStrength(1.0)},
        "plain": {},
    }


def run(path: Path) -> list[dict[str, Any]]:
    cells = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(cell["T"], cell["how"], cell["seed"]) for cell in cells}
    model, tokenizer = caw.load_model(DEMO_MODEL)
    prompts = [json.loads(line)["prompt"] for line in EVERYDAY.read_text(encoding="utf-8").splitlines()[:PROMPTS]]
    ids = encode_prompts(tokenizer, prompts, ModelFacts.of(model, tokenizer), chat=True)
    for temperature in TEMPERATURES:
        for seed in range(1, 5 if temperature >= WARM else 3):
            key = 7 + seed
            for how, asked in ways(key).items():
                if (temperature, how, seed) in done:
                    continue
                least = math.inf if how == "lists" else settings.LEAST_RACED
                with mock.patch.object(settings, "LEAST_RACED", least):
                    made = caw.generate(
                        model, tokenizer, ids, do_sample=True, temperature=temperature, seed=1000 * seed,
                        max_new_tokens=TOKENS, return_trace=False, progress=False, **asked,
                    ).sequences  # fmt: skip
                results = caw.detect(made, None, caw.Recommended(key), fpr=LEVEL)
                read = log_probs(model, [([*own, *new], len(own)) for own, new in zip(ids, made, strict=True)])
                rows = [
                    [result.p_value, len(new), -float(own.mean())]
                    for result, new, own in zip(results, made, read, strict=True)
                ]
                cells.append({"T": temperature, "how": how, "seed": seed, "rows": rows})
                with path.open("a") as file:
                    file.write(json.dumps(cells[-1]) + "\n")
    return cells


def summaries(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    made = []
    for temperature in TEMPERATURES:
        for how in ("lists", "race", "plain"):
            rows = [row for cell in cells if (cell["T"], cell["how"]) == (temperature, how) for row in cell["rows"]]
            if rows:
                found = sum(p <= LEVEL for p, _, _ in rows)
                made.append({
                    "temperature": temperature, "how": how, "texts": len(rows), "found": found,
                    "found_ci": [round(end, 4) for end in wilson(found, len(rows))],
                    "tokens": statistics.mean(tokens for _, tokens, _ in rows),
                    "nats": round(statistics.mean(nats for _, _, nats in rows), 4),
                })  # fmt: skip
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = summaries(run(asked.rows))
    for row in found:
        print(row)
    if asked.out is not None:
        asked.out.write_text(json.dumps({**about(), "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
