"""What a reader of drawn texts finds, against the most that any test could find, by length and temperature.

    python benchmarks/bench_drawn_reader.py [--prompts 60] [--temperatures 0.7 1.0] [--subjects smollm2] [--out ...]

Texts of the demo model, or of others of `bench_cost.py` with --subjects and --models, their folder (everyday prompts
from the 41st on, in the chat template of those that have one; the slip of `detection.ratios` was chosen on the first 40
with the demo model), drawn under `caw.Recommended` with 64 variants; their beginnings of 25, 50 and 100 tokens are
tested at 0.001, as all variants are (`family`) and as the one that marked them (`alone`, what a receipt allows).

    bound      share that the likelihood ratio itself finds: simulated, `DRAWS` texts for each beginning, from the
               probabilities with which its tokens were drawn. By Neyman and Pearson no test finds more. P(ratio >= x)
               of unmarked text is the mean of exp(-ratio) over marked texts that reach x
    reader     `caw.ReaderWeights(..., temperature=)`, with the prompt
    unprompted the same without the prompt
    off -0.3 … the reader told a temperature that much too low or too high
    greedy     the reader of greedy texts, as before there was one of drawn texts
    plain      no reader
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_cost import SUBJECTS, Loaded, coded
from bench_detection import PROMPTS

import caw
from caw.benchmark.machine import about
from caw.detection.family import alone
from caw_lab.training.own_texts import EVERYDAY

LENGTHS, LEVEL, VARIANTS, USED, DRAWS = (25, 50, 100), 1e-3, 64, 40, 4000
OFF = (-0.3, -0.15, 0.15, 0.3)


def bound(shares: list[np.ndarray], level: float, rng: np.random.Generator) -> float:
    """Share of marked texts that the exact test finds, of tokens drawn with these probabilities."""
    found = []
    for q in shares:
        q = q[(q > 0) & (q < 1)]
        exponential = rng.exponential(size=(DRAWS, len(q)))  # -log M; the winner's F is M^q
        ratios = np.sort((np.log(1 / q) - (1 / q - 1) * q * exponential).sum(axis=1))[::-1]
        tail = np.cumsum(np.exp(-ratios)) / DRAWS
        found.append((tail <= level).mean())
    return float(np.mean(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 1.0])
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, default=["smollm2"])
    parser.add_argument("--models", type=Path, default=Path(), help="folder of the .gguf files")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="written after each model and temperature; those in it are skipped")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    lines = [json.loads(line)["prompt"] for line in EVERYDAY.read_text(encoding="utf-8").splitlines()]
    prompts = [prompt for prompt in lines[USED:] if prompt not in PROMPTS][: asked.prompts]
    mark, loaded = caw.Recommended("drawn reader", variants=VARIANTS), Loaded(asked.models)
    rows = json.loads(asked.out.read_text())["rows"] if asked.out is not None and asked.out.exists() else []
    done = {(row["model"], row["temperature"]) for row in rows}
    for name, temperature in itertools.product(asked.subjects, asked.temperatures):
        if (name, temperature) in done:
            continue
        model, tokenizer = loaded(name)
        ids = coded(name, tokenizer, prompts)
        out = caw.generate(
            model, tokenizer, ids, watermark=mark, do_sample=True, temperature=temperature,
            max_new_tokens=max(LENGTHS), batch_size=60, return_trace=False, progress=False, speculate=None,
        )  # fmt: skip
        print(f"{name}, temperature {temperature}: {sum(map(len, out.sequences))} tokens", flush=True)
        rows += [{"model": name, **row} for row in rows_of(model, tokenizer, ids, out, mark, temperature)]
        if asked.out is not None:
            said = {"arguments": {"prompts": asked.prompts}, **about(), "rows": rows}
            asked.out.write_text(json.dumps(said, indent=1) + "\n")


def rows_of(
    model: Any, tokenizer: Any, prompts: list[list[int]], out: Any, mark: caw.Recommended, temperature: float
) -> list[dict[str, Any]]:
    base = caw.ReaderWeights(model, tokenizer, temperature=temperature)
    readers: dict[str, Any] = {"reader": base, "unprompted": None}
    for off in OFF:
        readers[f"off {off:+g}"] = caw.ReaderWeights(model, tokenizer, temperature=round(temperature + off, 3))
    readers |= {"greedy": caw.ReaderWeights(model, tokenizer), "plain": None}
    hits = {name: {n: {"family": 0, "alone": 0} for n in LENGTHS} for name in readers}
    shares: dict[int, list[np.ndarray]] = {n: [] for n in LENGTHS}
    for ids, tokens in zip(prompts, out.sequences, strict=True):
        own = base.with_prompt(ids)
        drawn = own.shares(np.array(tokens))
        variant = caw.detect(tokens, None, mark.drawn).variant
        counted = np.array([s is not None for s in caw.detect(tokens, None, mark.drawn.variant(variant)).token_scores])
        for name, reader in readers.items():
            weights = base if name == "unprompted" else None if reader is None else reader.with_prompt(ids)
            for n in LENGTHS:
                for kind, tested in (("family", mark.drawn), ("alone", mark.drawn.variant(variant))):
                    hits[name][n][kind] += caw.detect(tokens[:n], None, tested, LEVEL, weights=weights).is_watermarked
        for n in LENGTHS:
            shares[n].append(drawn[:n][counted[:n]])
    rows = []
    for n in LENGTHS:
        rng = np.random.default_rng(1)
        row: dict[str, Any] = {"temperature": temperature, "tokens": n, "texts": len(prompts)}
        row["bound"] = {k: round(bound(shares[n], alone(LEVEL, v), rng), 4) for k, v in
                        (("family", VARIANTS), ("alone", 1))}  # fmt: skip
        row |= {name: {k: round(v / len(prompts), 4) for k, v in hits[name][n].items()} for name in readers}
        rows.append(row)
        print(row, flush=True)
    return rows


if __name__ == "__main__":
    main()
