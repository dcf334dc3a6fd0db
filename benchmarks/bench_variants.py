"""What variants of a key cost: share of drawn texts that EXP(strength="scale", variants=V) finds, by length and V.

    python benchmarks/bench_variants.py [--keys 3] [--out benchmarks/results/variants.json]

Texts of the demo model (chat template, 24 everyday prompts, T = 0.7, top_p 1) drawn by the race at full strength under
keys of 64 variants; their beginnings are tested under the sub-key that marked them (p). Another V has V - 1 other
sub-keys, which say of a text what random keys say: the family-wise p-value is 1 - (1 - min(p, least of V - 1 uniform
numbers))^V. So one set of texts serves every V. `checked` is the share found by the detector itself at V = 64.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from bench_detection import PROMPTS
from scipy import stats

import caw
from caw.benchmark.machine import about
from caw.detection import Detector
from caw.detection.family import family_wise
from caw.models import DEMO_MODEL

SIZES, LENGTHS, LEVELS = (1, 16, 64, 256), (25, 50, 100), (1e-3, 1e-6)
CHECKED, TEMPERATURE = 64, 0.7


def drawn(keys: int) -> list[tuple[caw.EXP, list[int]]]:
    """(watermark, tokens) of every text; `watermark` has `CHECKED` variants."""
    model, tokenizer = caw.load_model(DEMO_MODEL, dtype="float32")
    found = []
    for number in range(keys):
        mark = caw.EXP(key=f"variants {number}", strength="scale", variants=CHECKED)
        out = caw.generate(
            model, tokenizer, list(PROMPTS), chat=True, watermark=mark, do_sample=True, temperature=TEMPERATURE,
            seed=number, max_new_tokens=max(LENGTHS), batch_size=24, return_trace=False, progress=False,
        )  # fmt: skip
        found += [(mark, tokens) for tokens in out.sequences]
        print(f"key {number}: {sum(map(len, out.sequences))} tokens", flush=True)
    return found


def rows_of(texts: list[tuple[caw.EXP, list[int]]]) -> list[dict[str, object]]:
    """Shares found, with the 95 % interval of Clopper and Pearson."""
    rng, rows = np.random.default_rng(1), []
    likeliest = [Detector(None, mark)(tokens).variant for mark, tokens in texts]
    for length in LENGTHS:
        long = [place for place, (_, tokens) in enumerate(texts) if len(tokens) >= length]
        alone = np.array([
            Detector(None, texts[place][0].variant(likeliest[place]))(texts[place][1][:length]).p_value
            for place in long
        ])  # fmt: skip
        whole = np.array([Detector(None, texts[place][0])(texts[place][1][:length]).p_value for place in long])
        for level in LEVELS:
            for size in SIZES:
                others = 1 - (1 - rng.random(len(long))) ** (1 / (size - 1)) if size > 1 else np.ones(len(long))
                hits = int((family_wise(np.minimum(alone, others), size) <= level).sum())
                low, high = stats.binomtest(hits, len(long)).proportion_ci()
                row = {"tokens": length, "level": level, "variants": size, "texts": len(long),
                       "found": hits / len(long), "low": low, "high": high}  # fmt: skip
                if size == CHECKED:
                    row["checked"] = float((whole <= level).mean())
                rows.append(row)
                print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = rows_of(drawn(asked.keys))
    if asked.out is not None:
        asked.out.write_text(json.dumps({"arguments": {"keys": asked.keys}, **about(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
