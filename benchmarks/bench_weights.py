"""What weights per token gain: share of marked texts found, weighted and not, and the table that is shipped.

    python benchmarks/bench_weights.py --data-dir DATA --texts texts.jsonl [--table OUT.safetensors] [--out r.json]

Texts of the demo model (greedy, chat template, KGW delta 2.5) on GSM8K questions and everyday prompts: four keys under
CAW (theta 0.8, beta 1.5), one of them also at full strength. They are generated into --texts once. Each key is tested
with a table made from the other three, so that neither its key nor its prompts are known to the table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_detection import PROMPTS
from scipy import stats

import caw
from caw.detection import Detector
from caw.detection.weight_estimates import estimate_weights
from caw.detection.weights import TokenWeights
from caw.models import DEMO_MODEL, load_tokenizer
from caw.watermarks import KGW, Watermark

DELTA, THETA, BETA, TOKENS = 2.5, 0.8, 1.5, 150
LENGTHS, RATES = (50, 75, 100, 150), (1e-2, 1e-3, 1e-5)
PRACTICE, DEPLOYED = ("train0", "train1", "train2"), "deployed"


def generate(data_dir: Path, path: Path) -> None:
    """Write the texts, a line each: {"key", "how", "tokens", "text"}."""
    rows = [json.loads(line)["question"] for line in (data_dir / "gsm8k" / "train.jsonl").read_text().splitlines()]
    model, tokenizer = caw.load_model(DEMO_MODEL)
    policy = caw.CapacityPolicy(DEMO_MODEL, theta=THETA, beta=BETA)
    jobs = [(key, "caw", rows[3000 + 24 * k : 3024 + 24 * k] + list(PROMPTS[:10])) for k, key in enumerate(PRACTICE)]
    jobs += [(DEPLOYED, how, rows[5000:5030] + list(PROMPTS[14:])) for how in ("caw", "full")]
    with path.open("w") as out:
        for key, how, prompts in jobs:
            result = caw.generate(
                model, tokenizer, prompts, chat=True, watermark=KGW(key=key, delta=DELTA),
                policy=policy if how == "caw" else None, max_new_tokens=TOKENS, batch_size=20, return_trace=False,
            )  # fmt: skip
            for tokens, text in zip(result.sequences, result.texts, strict=True):
                out.write(json.dumps({"key": key, "how": how, "tokens": tokens, "text": text}) + "\n")


def tables(rows: Sequence[dict[str, Any]], tokenizer: Any) -> dict[str, TokenWeights]:
    """The table for each key, made from the CAW texts of all others; "" = from all practice keys, to ship."""
    found = {}
    for left_out in (*PRACTICE, DEPLOYED, ""):
        used = [k for k in (*PRACTICE, DEPLOYED) if k != left_out] if left_out else list(PRACTICE)
        texts: dict[Watermark, list[Any]] = {
            KGW(key=k): [r["tokens"] for r in rows if r["key"] == k and r["how"] == "caw"] for k in used
        }
        about = {"model": DEMO_MODEL, "policy": f"capacity theta {THETA} beta {BETA}", "delta": DELTA}
        found[left_out] = estimate_weights(texts, tokenizer, len(tokenizer), provenance=about)
    return found


def measure(rows: Sequence[dict[str, Any]], weights: dict[str, TokenWeights]) -> list[dict[str, Any]]:
    out = []
    for how in ("caw", "full"):
        for length in LENGTHS:
            pairs = []
            for row in rows:
                if row["how"] != how or len(row["tokens"]) < length:
                    continue
                ids = row["tokens"][:length]
                watermark = KGW(key=row["key"])
                plain, weighted = (Detector(None, watermark, weights=w)(ids) for w in (None, weights[row["key"]]))
                pairs.append((plain.p_value, weighted.p_value))  # type: ignore[union-attr]
            p = np.array(pairs)
            for rate in RATES:
                hits = (p <= rate).sum(axis=0)
                gained = int(((p[:, 1] <= rate) & (p[:, 0] > rate)).sum())
                lost = int(((p[:, 1] > rate) & (p[:, 0] <= rate)).sum())
                sign = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
                out.append({"how": how, "tokens": length, "fpr": rate, "texts": len(p), "plain": hits[0] / len(p),
                            "weighted": hits[1] / len(p), "gained": gained, "lost": lost, "sign_test_p": sign,
                            "median_log10_p": np.median(np.log10(p), axis=0).tolist()})  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.texts.exists():
        generate(options.data_dir, options.texts)
    rows = [json.loads(line) for line in options.texts.read_text().splitlines()]
    weights = tables(rows, load_tokenizer(DEMO_MODEL))
    print("green share where counted:", weights[""].provenance["mean_by_kind"])
    found = measure(rows, weights)
    for row in found:
        before, after = row["median_log10_p"]
        print(
            f"{row['how']:5s} {row['tokens']:4d} tokens, FPR {row['fpr']:g}: plain {row['plain']:.3f}, "
            f"weighted {row['weighted']:.3f} of {row['texts']} (+{row['gained']} -{row['lost']}, "
            f"p = {row['sign_test_p']:.2g}); median log10 p {before:.2f} -> {after:.2f}"
        )
    if options.table:
        weights[""].save(options.table)
    if options.out:
        about = {"delta": DELTA, "theta": THETA, "beta": BETA, "command": "bench_weights.py --data-dir DATA"}
        options.out.write_text(json.dumps({**about, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
