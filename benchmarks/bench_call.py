"""Milliseconds of processor time that a call of `caw.generate` spends before it reads the prompt.

    OMP_NUM_THREADS=1 python benchmarks/bench_call.py [--model smollm2-135m] [--rounds 41] [--out FILE]

The model is loaded; every setting takes its turn in every round; medians with quartiles. The clock stops where prefill
begins. Each side gives the text that it gave in the first round, or the run ends.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import caw
from caw.benchmark.machine import about
from caw.decoding import decoder

PROMPT = "The sky is"
KEY = 42


def settings(evaluator: str) -> dict[str, dict[str, Any]]:
    drawn = {"do_sample": True, "temperature": 0.7, "top_p": 0.95}
    return {
        "plain": {},
        "KGW, fixed": {"watermark": caw.KGW(key=KEY)},
        "KGW under CAW": {"watermark": caw.KGW(key=KEY), "policy": caw.CapacityPolicy(evaluator)},
        "EXP, drawn": {"watermark": caw.EXP(key=KEY, strength="scale"), **drawn},
    }


def before_prefill(model: Any, tokenizer: Any, **given: Any) -> tuple[float, list[int]]:
    """(seconds of processor time until prefill, new tokens)."""
    begun, stopped, own = time.process_time(), [], decoder.prefill

    def prefill(*args: Any, **kwargs: Any) -> Any:
        stopped.append(time.process_time())
        return own(*args, **kwargs)

    with mock.patch.object(decoder, "prefill", prefill):
        out = caw.generate(model, tokenizer, PROMPT, max_new_tokens=1, progress=False, **given)
    return stopped[0] - begun, out.sequences[0]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--evaluator", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model, tokenizer = caw.load_model(args.model, dtype="float32")
    given = settings(args.evaluator)
    first = {name: before_prefill(model, tokenizer, **each)[1] for name, each in given.items()}
    seconds: dict[str, list[float]] = {name: [] for name in given}
    for _ in range(args.rounds):
        for name, each in given.items():
            took, tokens = before_prefill(model, tokenizer, **each)
            if tokens != first[name]:
                raise SystemExit(f"{name} must give the same text in every round, got another; look for what changed")
            seconds[name].append(1000 * took)
    rows = []
    for name, each in seconds.items():
        low, middle, high = statistics.quantiles(each, n=4)
        rows.append({"setting": name, "ms": round(middle, 2), "ms_quartiles": [round(low, 2), round(high, 2)]})
        print(f"| {name:14} | {middle:7.2f} ms | {low:.2f} to {high:.2f} |")
    if args.out:
        given_to_it = {**vars(args), "out": None}
        args.out.write_text(json.dumps({"arguments": given_to_it, **about(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
