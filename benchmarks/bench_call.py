"""Milliseconds of processor time that a call of `caw.generate` spends before it reads the prompt.

    OMP_NUM_THREADS=1 python benchmarks/bench_call.py [--model smollm2-135m] [--rounds 41] [--out FILE]
    OMP_NUM_THREADS=1 python benchmarks/bench_call.py --model gemma3-270m.Q4_K_M.gguf --evaluator universal \
        --quantization file

The model is loaded, in float32 or from its file's blocks; every setting takes its turn in every round; medians with
quartiles. The clock stops where prefill begins. Each side gives the text that it gave in the first round, or the run
ends. Rows join those of other models in the file given by `--out`.
"""

from __future__ import annotations

import argparse
import json
import os
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
FIRST = "smollm2-135m"  # of rows that name no model


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
    parser.add_argument("--quantization", help="as `caw.load_model` takes it")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    weights = {"quantization": args.quantization} if args.quantization else {"dtype": "float32"}
    model, tokenizer = caw.load_model(args.model, device="cpu", **weights)
    name_of_model = os.path.basename(args.model)
    given = settings(args.evaluator)
    first = {name: before_prefill(model, tokenizer, **each)[1] for name, each in given.items()}
    seconds: dict[str, list[float]] = {name: [] for name in given}
    for _ in range(args.rounds):
        for name, each in given.items():
            took, tokens = before_prefill(model, tokenizer, **each)
            if tokens != first[name]:
                raise SystemExit(f"{name} must give the same text in every round, got another; look for what changed")
            seconds[name].append(1000 * took)
    rows, here = [], about()
    ran_on = {"model": name_of_model, "processor": here["machine"]["cpu"], "commit": here["commit"]}
    for name, each in seconds.items():
        low, middle, high = statistics.quantiles(each, n=4)
        quartiles = [round(low, 2), round(high, 2)]
        rows.append({**ran_on, "setting": name, "ms": round(middle, 2), "ms_quartiles": quartiles})
        print(f"| {name:14} | {middle:7.2f} ms | {low:.2f} to {high:.2f} |")
    if args.out:
        before = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
        kept = [row for row in before if row.get("model", FIRST) != name_of_model]
        given_to_it = {**vars(args), "model": name_of_model, "out": None}
        args.out.write_text(json.dumps({"arguments": given_to_it, **here, "rows": kept + rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
