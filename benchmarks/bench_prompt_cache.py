"""What comparing settings on the same prompts costs, with one `caw.PromptCache` for all calls and without.

    python benchmarks/bench_prompt_cache.py [--prompts 32 128 512] [--tokens 64] [--batch 8] [--rounds 5] [--out r.json]

A comparison is plain decoding, KGW, EXP and KGW under CAW of eight prompts in float32, no two of which begin alike (a
beginning that all prompts of a call share is read once without the cache too). Each side first has to give the
same tokens; then they take turns, a new cache in every round, so that reading each prompt once is paid for. Processor
time with one thread on a CPU.
"""

from __future__ import annotations

import argparse
import json
import warnings
from typing import Any

import torch
from bench_detection import prompt_ids

import caw
from caw.benchmark.machine import about
from caw.benchmark.timing import Clock, Summary, clock_for, ratios


def prompts_of(tokenizer: Any, length: int, count: int = 8) -> list[list[int]]:
    """Prompts of `length` tokens: those of bench_detection.py, each followed by the next ones; no two begin alike."""
    texts = prompt_ids(tokenizer)
    every = [token for ids in texts for token in ids] * (2 + length // min(map(len, texts)))
    starts = [sum(map(len, texts[:i])) + 1 + i for i in range(count)]
    return [every[start : start + length] for start in starts]


def compare(
    model: Any, tokenizer: Any, prompts: list[list[int]], options: dict[str, Any], cached: bool
) -> list[list[list[int]]]:
    """Tokens of every setting."""
    capacity = caw.CapacityPolicy(options["evaluator"], theta=0.8, beta=1.5)
    settings: list[dict[str, Any]] = [
        {},
        {"watermark": caw.KGW(key="prompts")},
        {"watermark": caw.EXP(key="prompts")},
        {"watermark": caw.KGW(key="prompts"), "policy": capacity},
    ]
    kept = caw.PromptCache() if cached else None
    common = {
        "max_new_tokens": options["tokens"], "min_new_tokens": options["tokens"], "batch_size": options["batch"],
        "progress": False, "return_trace": False,
    }  # fmt: skip
    return [
        caw.generate(model, tokenizer, prompts, prompt_cache=kept, **common, **setting).sequences
        for setting in settings
    ]


def row_of(
    model: Any, tokenizer: Any, length: int, options: dict[str, Any], rounds: int, clock: Clock
) -> dict[str, Any]:
    prompts = prompts_of(tokenizer, length)
    sides = (False, True)
    made = [compare(model, tokenizer, prompts, options, cached) for cached in sides]
    if made[0] != made[1]:
        raise SystemExit(f"prompts of {length} tokens: texts differ with the cache")
    seconds: dict[bool, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 else sides[::-1]:
            start = clock()
            compare(model, tokenizer, prompts, options, side)
            seconds[side].append(clock() - start)
    return {
        "prompt": length,
        "seconds_without": Summary.of(seconds[False]).as_dict(),
        "ratio": ratios(seconds[True], seconds[False]).as_dict(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--evaluator", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, nargs="+", default=[32, 128, 512], help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each text")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    model, tokenizer = caw.load_model(arguments.model, dtype="float32")
    name, clock = clock_for(model.device, arguments.threads)
    rows = []
    print(f"| prompt, tokens | time with the cache, of without ({name}) | quartiles |\n| ---: | ---: | --- |")
    for length in arguments.prompts:
        rows.append(row_of(model, tokenizer, length, vars(arguments), arguments.rounds, clock))
        ratio = rows[-1]["ratio"]
        print(f"| {length} | {ratio['median']:.2f} | {ratio['low']:.2f} - {ratio['high']:.2f} |", flush=True)
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump(
                {"arguments": vars(arguments), **about(model.device), "clock": name, "rows": rows}, file, indent=1
            )
            file.write("\n")


if __name__ == "__main__":
    main()
