"""Where the mark of drawn texts fails: share found by length and temperature, and what retrying adds and costs.

    python benchmarks/bench_short_texts.py [--prompts 8] [--out benchmarks/results/short_texts.json]

Everyday prompts to the demo model with its chat template, `caw.Recommended`, four texts of each prompt (the variants
that `detectable_at` would try), T = 0.3 and 0.7. Their beginnings of 25, 50, 100 and 200 tokens are tested by the
detector of both families; those that ended earlier count as they are, so every row has all texts.

    found    share of single texts found at 0.001; the interval is a bootstrap over prompts
    retried  share of prompts of which one of the four texts is found, as with `detectable_at=1e-3`, four attempts
    decoded  mean number of texts made for each, up to the first that is found
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from bench_detection import PROMPTS

import caw
from caw.benchmark.machine import about
from caw.models import DEMO_MODEL

TEMPERATURES, LENGTHS, LEVEL, ATTEMPTS = (0.3, 0.7), (25, 50, 100, 200), 1e-3, 4
DRAWS = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    model, tokenizer = caw.load_model(DEMO_MODEL, dtype="float32")
    mark, rng, rows = caw.Recommended("short texts"), np.random.default_rng(1), []
    prompts = list(PROMPTS)[: asked.prompts]
    for temperature in TEMPERATURES:
        made = caw.generate(
            model, tokenizer, prompts * ATTEMPTS, chat=True, watermark=mark, do_sample=True, temperature=temperature,
            max_new_tokens=max(LENGTHS), batch_size=24, return_trace=False, progress=False,
        ).sequences  # fmt: skip
        for length in LENGTHS:
            results = caw.detect([tokens[:length] for tokens in made], None, mark, fpr=LEVEL)
            found = np.array([r.is_watermarked for r in results]).reshape(ATTEMPTS, len(prompts))
            ended = np.array([len(tokens) < length for tokens in made])
            shares = found.mean(axis=0)
            drawn = shares[rng.integers(0, len(prompts), (DRAWS, len(prompts)))].mean(axis=1)
            first = np.where(found.any(axis=0), found.argmax(axis=0) + 1, ATTEMPTS)
            low, high = np.quantile(drawn, (0.025, 0.975))
            row = {
                "temperature": temperature, "tokens": length, "texts": len(made), "ended": float(ended.mean()),
                "found": float(shares.mean()), "low": float(low), "high": float(high),
                "retried": float(found.any(axis=0).mean()), "decoded": float(first.mean()),
            }  # fmt: skip
            rows.append(row)
            print(row, flush=True)
    if asked.out is not None:
        said = {"arguments": {"prompts": asked.prompts}, **about(), "rows": rows}
        asked.out.write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
