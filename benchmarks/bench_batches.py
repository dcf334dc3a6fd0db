"""Whether a text depends on what is decoded beside it: equal texts at several batch sizes and orders of the prompts.

    python benchmarks/bench_batches.py [--tokens 64] [--dtypes float32 bfloat16] [--batches 3 8 12] [--out r.json]

Every prompt of bench_detection.py, without a watermark and with KGW under CAW, greedily and sampled, is decoded alone
and then in batches, in reverse order too. The tokens must be the same everywhere, in bfloat16 too. Where they are not,
"gap" is how far apart the model, given the text up to the first difference, holds the two tokens: nats between their
log-probabilities, as it sees them in this dtype.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import warnings
from functools import partial
from typing import Any

import torch
from bench_detection import prompt_ids

import caw

WAYS: dict[str, dict[str, Any]] = {"greedy": {}, "sampled": {"do_sample": True, "temperature": 0.8, "seed": 1}}


def first_difference(a: list[int], b: list[int]) -> int | None:
    """Where two texts part, None if nowhere."""
    if a == b:
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def gap(model: Any, prompt: list[int], alone: list[int], beside: list[int], at: int) -> float:
    """Nats between the two tokens where the texts part."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + alone[:at]], device=model.device)).logits[0, -1].float()
    return abs(float(logits[alone[at]] - logits[beside[at]]))


def compare(model: Any, prompts: list[list[int]], alone: list[list[int]], beside: list[list[int]]) -> dict[str, Any]:
    """How many texts are equal; where the others part and how near the tie was."""
    places = [first_difference(a, b) for a, b in zip(alone, beside, strict=True)]
    gaps = [
        gap(model, prompt, a, b, at)
        for prompt, a, b, at in zip(prompts, alone, beside, places, strict=True)
        if at is not None and at < min(len(a), len(b))
    ]
    parted = [at for at in places if at is not None]
    return {"texts": len(places), "equal": places.count(None), "first_difference": parted, "gaps": gaps}


def rows_of(dtype: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    model, tokenizer = caw.load_model(arguments.model, dtype=dtype)
    prompts = prompt_ids(tokenizer)
    capacity = caw.CapacityPolicy(arguments.evaluator, theta=0.8, beta=1.5)
    marks: dict[str, dict[str, Any]] = {
        "plain": {}, "kgw+caw": {"watermark": caw.KGW(key="batches"), "policy": capacity}
    }  # fmt: skip
    common = {"max_new_tokens": arguments.tokens, "progress": False, "return_trace": False}
    rows = []
    for (mark, marked), (way, sampled) in itertools.product(marks.items(), WAYS.items()):
        decode = partial(caw.generate, model, tokenizer, **common, **marked, **sampled)
        alone = decode(prompts, batch_size=1).sequences
        for batch in arguments.batches:
            beside = decode(prompts[::-1], batch_size=batch).sequences[::-1]
            found = compare(model, prompts, alone, beside)
            rows.append({"dtype": dtype, "mark": mark, "way": way, "batch": batch, **found})
            near = f"{statistics.median(found['gaps']):.2f}" if found["gaps"] else ""
            print(f"| {dtype} | {mark} | {way} | {batch} | {found['equal']} of {found['texts']} | {near} |", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--evaluator", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--batches", type=int, nargs="+", default=[3, 8, 12])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    print("| dtype | mark | | batch | texts equal to those decoded alone | median gap, nats |")
    print("| --- | --- | --- | --- | --- | --- |")
    rows = [row for dtype in arguments.dtypes for row in rows_of(dtype, arguments)]
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump({"arguments": vars(arguments), "rows": rows}, file, indent=1)
            file.write("\n")
    if any(row["equal"] < row["texts"] for row in rows):
        raise SystemExit("texts depend on the batch")


if __name__ == "__main__":
    main()
