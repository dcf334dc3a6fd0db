"""Edits at every width, from the same texts, and how long a free beginning lasts.

    python benchmarks/robust_redrawn.py redrawn cap --folder runs/robust --models MODELS --data PUBLIC

Parts write into the folder that `bench_robust.py --out` gathers; PUBLIC is that of `robust_public.py`.

    redrawn   a race's scores drawn again under many keys from unmarked texts and their tokens' probabilities q:
              where a race would have drawn, the token's uniform is U^q; a (context, token) that an edit leaves has that
              one, any other a fresh one. So all widths read the same texts. Texts of a 7B that others published have a
              smaller model's q, and a random share of the tokens made certain, so that `NATS` a token are left
    cap       tokens until a beginning has spent log 64 nats, prompts that settings may be chosen with
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_cost import USED, Loaded, coded
from bench_robust import KEYS, LEVELS, SETS, UNMARKED, edits, prompts_of

import caw
from caw.benchmark.machine import about
from caw.defaults import FREE_NATS, FREE_TOKENS
from caw.io.files import write_text
from caw.models.teacher import teacher_forced, token_log_probs
from caw_lab.training.everyday import EVERYDAY

CAPS = (32, 48, FREE_TOKENS, 96, 128)
NATS, DRAWN_AGAIN = (0.45, 0.65), 40


def mean(values: Iterable[float]) -> list[float]:
    """Mean and its standard error."""
    found = np.array(list(values))
    return [round(float(found.mean()), 4), round(float(found.std(ddof=1) / len(found) ** 0.5), 4)]


@torch.inference_mode()
def chances(model: Any, asked: list[list[int]], texts: list[list[int]], temperature: float) -> list[np.ndarray]:
    """-log of each token's probability under the sampler."""
    out: list[np.ndarray] = [np.zeros(0)] * len(texts)
    for i, logits in teacher_forced(model, [([*p, *t], len(p)) for p, t in zip(asked, texts, strict=True)]):
        out[i] = -token_log_probs(logits[:-1] / temperature, torch.tensor(texts[i])).numpy()
    return out


def thinned(surprisals: list[np.ndarray], nats: float, rng: np.random.Generator) -> list[np.ndarray]:
    """A random share of all tokens made certain, so that `nats` a token are left in the mean."""
    share = nats / np.concatenate(surprisals).mean()
    return [np.where(rng.random(len(values)) < share, values, 0.0) for values in surprisals]


def simulated(
    ids: list[int], surprisals: np.ndarray, edited: list[int], width: int, rng: np.random.Generator
) -> np.ndarray:
    """P-values of an edited text under `DRAWN_AGAIN` keys."""
    start = min(int((np.cumsum(surprisals) < FREE_NATS).sum()) + 1, FREE_TOKENS)
    kept, seen = {}, set()
    for i in range(width, len(ids)):
        context = tuple(ids[i - width : i])
        if context not in seen and i >= start:
            kept[context] = ids[i], math.exp(-surprisals[i])
        seen.add(context)
    found, seen = [], set()
    for i in range(width, len(edited)):
        context = tuple(edited[i - width : i])
        if context not in seen:
            token, chance = kept.get(context, (None, 1.0))
            found.append(chance if token == edited[i] else 1.0)
        seen.add(context)
    uniforms = rng.random((DRAWN_AGAIN, len(found))) ** np.array(found)
    scores = torch.from_numpy(-np.log1p(-uniforms)).sum(1)
    return torch.special.gammaincc(torch.tensor(float(len(found)), dtype=torch.float64), scores).numpy()


def redrawn(folder: Path, loaded: Loaded, public: Path) -> Iterator[dict[str, Any]]:
    cases = []
    path = folder / "ids" / f"demo .46 {UNMARKED}.json"
    if path.exists():
        wanted, tokenizer = SETS["demo .46"], loaded("demo")[1]
        asked = [coded("demo", tokenizer, prompts_of(number, wanted.texts)) for number in range(KEYS)]
        pairs = list(zip(itertools.chain(*asked), itertools.chain(*json.loads(path.read_text())), strict=True))
        whole = [pair for pair in pairs if len(pair[1]) == wanted.tokens]
        cases.append(("demo .46", "demo", wanted.sampling["temperature"], whole, (None,)))
    path = public / "natzir" / "data" / "gen3_en.jsonl"
    if path.exists():
        tokenizer, rows = loaded("qwen05")[1], [json.loads(line) for line in path.read_text().splitlines()]
        texts = [ids[:300] for ids in tokenizer([row["nowm"] for row in rows], add_special_tokens=False)["input_ids"]]
        whole = list(zip(coded("qwen05", tokenizer, [row["prompt"] for row in rows]), texts, strict=True))
        cases.append(("7B", "qwen05", 1.0, whole, NATS))
    for name, model_name, temperature, pairs, targets in cases:
        model, tokenizer = loaded(model_name)
        texts = [ids for _, ids in pairs]
        said = tokenizer.batch_decode(texts, skip_special_tokens=True)
        before = chances(model, [asked for asked, _ in pairs], texts, temperature)
        changes, rng = edits(said), np.random.default_rng(0)
        cut = {edit: [change(t, str(i)) for i, t in enumerate(said)] for edit, change in changes.items()}
        for nats, (edit, several) in itertools.product(targets, cut.items()):
            spent = before if nats is None else thinned(before, nats, np.random.default_rng(1))
            edited = tokenizer(several, add_special_tokens=False)["input_ids"]
            for width in (1, 2, 3, 4):
                p = np.array([simulated(*of, width, rng) for of in zip(texts, spent, edited, strict=True)])
                yield {
                    "set": name, "nats": round(float(np.concatenate(spent).mean()), 3), "edit": edit, "width": width,
                    "n": len(texts), "found": [mean((p <= level).mean(1)) for level in LEVELS],
                }  # fmt: skip


def cap(_: Path, loaded: Loaded, __: Path) -> Iterator[dict[str, Any]]:
    prompts = [json.loads(line)["prompt"] for line in EVERYDAY.read_text(encoding="utf-8").splitlines()[:USED]]
    for name in ("demo", "qwen05"):
        model, tokenizer = loaded(name)
        ids = coded(name, tokenizer, prompts)
        for temperature in (0.2, 0.3, 0.5):
            made = caw.generate(
                model, tokenizer, ids, do_sample=True, temperature=temperature, seed=5, max_new_tokens=max(CAPS),
                batch_size=20, return_trace=False, progress=False, speculate=None,
            ).sequences  # fmt: skip
            spent = [np.cumsum(values) for values in chances(model, ids, made, temperature)]
            needed = [int((s < FREE_NATS).sum()) + 1 if len(s) and s[-1] >= FREE_NATS else math.inf for s in spent]
            whole = [n for n, s in zip(needed, spent, strict=True) if n < math.inf or len(s) == max(CAPS)]
            yield {
                "model": name, "temperature": temperature, "n": len(whole), "ended_before": len(needed) - len(whole),
                "quantiles": {q: float(np.quantile(whole, q, method="lower")) for q in (0.1, 0.5, 0.9)},
                "beyond": {limit: sum(n > limit for n in whole) for limit in CAPS},
            }  # fmt: skip


PARTS = {"redrawn": redrawn, "cap": cap}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=Path())
    parser.add_argument("--data", type=Path, default=Path())
    asked = parser.parse_args()
    torch.set_num_threads(1)
    loaded = Loaded(asked.models)
    (asked.folder / "ids").mkdir(parents=True, exist_ok=True)
    for part in asked.parts:
        rows, began = [], time.time()
        for row in PARTS[part](asked.folder, loaded, asked.data):
            rows.append(row)
            print(f"{part} {time.time() - began:.0f} s: {row}", flush=True)
            write_text(asked.folder / f"{part}.json", json.dumps({**about(), "part": part, "rows": rows}))


if __name__ == "__main__":
    main()
