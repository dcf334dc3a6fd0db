"""Marked parts of texts: how well their ends are found, and how often unmarked text is called marked.

    python benchmarks/bench_regions.py --texts regions.jsonl [--data-dir DATA] [--changes] [--out r.json]

1. Real texts: the demo model's (sampled, chat template, everyday prompts), a middle third of 200 tokens marked with KGW
   (delta 2.5) or EXP, generated into --texts once. Also with the parts cut to 100 tokens.
2. Simulated KGW scores: 60 % or 50 % green where marked (25 % elsewhere), 93 % of the tokens count; thirds, two parts,
   beginnings, ends, whole texts. `segments.CHANGE` was chosen on seeds "choose" (--changes shows other values), the
   result is of seeds "confirm".
3. With --data-dir, false alarms: GSM8K solutions, five to a text, each text with a key of its own; share called marked
   at 0.1 and 0.01 by the text with its parts, and by the least p-value of all windows without correction.

"covered": share of the marked tokens that the regions cover. "marked": share of the regions' tokens that are marked.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_detection import PROMPTS
from scipy import stats

import caw
from caw.benchmark.machine import about
from caw.detection import Detector, segments
from caw.detection.regions import Region, search
from caw.detection.statistics import holm
from caw.detection.windows import shares_of, window_p_values, windows_of
from caw.models import DEMO_MODEL, load_tokenizer
from caw.watermarks import EXP, KGW, SynthID, Unigram, Watermark

PART, DELTA, FPR, BATCH, COUNT = 200, 2.5, 1e-3, 25, 50
SEEDS = {"choose": 1, "confirm": 2}
CHANGES = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
CASES = {  # name: (tokens, share green, marked parts)
    "third of 150": (150, 0.6, [(50, 100)]),
    "third of 300": (300, 0.6, [(100, 200)]),
    "third of 600": (600, 0.6, [(200, 400)]),
    "third of 600, weak": (600, 0.5, [(200, 400)]),
    "third of 1200": (1200, 0.6, [(400, 800)]),
    "two parts of 1500": (1500, 0.6, [(300, 450), (900, 1100)]),
    "beginning of 600": (600, 0.6, [(0, 200)]),
    "end of 600": (600, 0.6, [(400, 600)]),
    "all of 100": (100, 0.6, [(0, 100)]),
    "all of 600": (600, 0.5, [(0, 600)]),
}
NULLS: dict[str, Callable[[int, int], Watermark]] = {
    "KGW lefthash": lambda key, size: KGW(key=key),
    "KGW selfhash": lambda key, size: KGW(key=key, seeding="selfhash"),
    "Unigram": lambda key, size: Unigram(key=key),
    "EXP": lambda key, size: EXP(key=key),
    "SynthID mean": lambda key, size: SynthID(key, reading="mean"),
    "KGW lefthash, transformers": lambda key, size: KGW(key=key, format="transformers", vocab_size=size),
}


def watermark_of(how: str, key: str) -> Watermark:
    return KGW(key=key, delta=DELTA) if how == "kgw" else EXP(key=key)


def generate(path: Path) -> None:
    """Write the texts, a line each: {"how", "key", "parts": three lengths, "tokens"}."""
    model, tokenizer = caw.load_model(DEMO_MODEL, dtype="float32")
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], add_generation_prompt=True)["input_ids"]
        for p in (PROMPTS * 3)[:COUNT]
    ]

    def more(begun: list[list[int]], watermark: Watermark | None, seed: int) -> list[list[int]]:
        new = caw.generate(
            model, tokenizer, begun, watermark=watermark, max_new_tokens=PART, min_new_tokens=PART, do_sample=True,
            seed=seed, batch_size=BATCH, return_trace=False, progress=False,
        ).sequences  # fmt: skip
        return [old + own for old, own in zip(begun, new, strict=True)]

    with path.open("w", buffering=1) as out:
        for half in range(COUNT // BATCH):
            mine = prompts[BATCH * half : BATCH * (half + 1)]
            first = more(mine, None, half)
            for how in ("kgw", "exp"):
                key = f"regions {half}"
                done = more(more(first, watermark_of(how, key), 10 + half), None, 20 + half)
                for prompt, ids in zip(mine, done, strict=True):
                    row = {"how": how, "key": key, "parts": [PART] * 3, "tokens": ids[len(prompt) :]}
                    out.write(json.dumps(row) + "\n")


def judged(tokens: int, parts: list[tuple[int, int]], regions: tuple[Region, ...]) -> tuple[float, float, int]:
    """(share of the marked tokens covered, share of the regions' tokens that are marked, number of regions)."""
    truth, said = np.zeros((2, tokens), dtype=bool)
    for start, end in parts:
        truth[start:end] = True
    for region in regions:
        said[region.start : region.end] = True
    both = float((truth & said).sum())
    return both / truth.sum(), both / max(1.0, float(said.sum())), len(regions)


def summary(found: list[tuple[float, float, int]]) -> dict[str, Any]:
    """Of texts in which nothing is found both shares are 0."""
    shares = np.array(found)[:, :2]
    median, low = np.median(shares, axis=0), np.quantile(shares, 0.1, axis=0)
    return {
        "texts": len(found), "found": sum(f[2] > 0 for f in found), "covered": float(median[0]),
        "covered_p10": float(low[0]), "marked": float(median[1]), "marked_p10": float(low[1]),
        "regions": float(np.mean([f[2] for f in found])),
    }  # fmt: skip


def simulated(seeds: str) -> Iterator[dict[str, Any]]:
    watermark = KGW(key=0)
    for name, (tokens, green, parts) in CASES.items():
        found = []
        for number in range(COUNT):
            rng = np.random.default_rng([SEEDS[seeds], number])
            counted, values = rng.random(tokens) < 0.93, (rng.random(tokens) < 0.25).astype(float)
            for start, end in parts:
                values[start:end] = rng.random(end - start) < green
            found.append(judged(tokens, parts, search(values, counted, watermark, FPR).regions))
        yield {"kind": "simulated", "case": name, "green": green, **summary(found)}


def real(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        generate(path)
    texts = [json.loads(line) for line in path.read_text().splitlines()]
    for how in ("kgw", "exp"):
        for part in (PART, PART // 2):
            found, alone = [], 0
            for text in (t for t in texts if t["how"] == how):
                a, b, _ = text["parts"]
                ids = text["tokens"]
                cut = ids[a - part : a + part] + ids[a + b : a + b + part]
                result: Any = Detector(None, watermark_of(how, text["key"]), FPR, regions=True)(cut)
                found.append(judged(3 * part, [(part, 2 * part)], result.regions))
                alone += result.text_p_value <= FPR
            yield {"kind": "demo model", "case": f"third of {3 * part}", "watermark": how, **summary(found),
                   "found_by_the_whole_text_alone": alone}  # fmt: skip


def null(folder: Path, count: int) -> Iterator[dict[str, Any]]:
    tokenizer = load_tokenizer(DEMO_MODEL)
    lines = (folder / "gsm8k" / "train.jsonl").read_text().splitlines()
    answers = tokenizer([json.loads(line)["answer"] for line in lines], add_special_tokens=False)["input_ids"]
    starts = range(0, len(answers) - 4, 5)[:count]
    texts = [np.array(list(chain(*answers[i : i + 5])), dtype=np.int64) for i in starts]
    rng = np.random.default_rng(0)
    for name, make in NULLS.items():
        family, least = np.empty(len(texts)), np.empty(len(texts))
        for i, text in enumerate(texts):
            watermark = make(int(rng.integers(0, 2**62)), len(tokenizer))
            (scored,) = Detector(None, watermark).score([text])
            windows = windows_of(len(text))
            p = window_p_values(windows, scored.values, scored.counted, watermark)
            family[i], least[i] = holm(p, shares_of(windows)).min(), p.min()
        for level in (0.1, 0.01):
            hits = int((family <= level).sum())
            interval = stats.binomtest(hits, len(texts)).proportion_ci(method="exact")
            yield {"kind": "null", "watermark": name, "level": level, "texts": len(texts), "rate": hits / len(texts),
                   "low": float(interval.low), "high": float(interval.high),
                   "without_correction": float((least <= level).mean())}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--null-texts", type=int, default=1000)
    parser.add_argument("--changes", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.changes:
        chosen = segments.CHANGE
        for segments.CHANGE in CHANGES:
            for row in simulated("choose"):
                print(f"change {segments.CHANGE:g}: {show(row)}", flush=True)
        segments.CHANGE = chosen
    rows: list[dict[str, Any]] = []
    parts = [simulated("confirm")]
    parts += [real(options.texts)] if options.texts else []
    parts += [null(options.data_dir, options.null_texts)] if options.data_dir else []
    for row in (row for part in parts for row in part):
        rows.append(row)
        print(show(row), flush=True)
    if options.out:
        command = "python benchmarks/bench_regions.py --texts regions.jsonl --data-dir DATA"
        said = {"command": command, "fpr": FPR, "delta": DELTA, "change": segments.CHANGE, **about()}
        options.out.write_text(json.dumps({**said, "rows": rows}, indent=1) + "\n")


def show(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{value}" for name, value in row.items())


if __name__ == "__main__":
    main()
