"""Decoding from a .gguf file's own blocks beside llama.cpp on the same file, in one run.

    python benchmarks/bench_quantised.py [--model smollm2-135m] [--evaluator smollm2-135m] [--batches 1 4 8]
        [--prefix 128] [--tokens 64] [--rounds 5] [--threads 2] [--bfloat16] [--transformers]
        [--fast] [--speculate auto] [--clock wall] [--out r.json]

Sides: llama.cpp (the package xllamacpp, one slot a sequence; left out with --without-llama), this library
unwatermarked and with KGW under CAW, with --fast also by products that round their inputs to 8 bits, with --bfloat16
the dequantised model, both ways; with --transformers that model's own `generate`. They take turns. Without --speculate
no side drafts: a token takes a forward, and the text, which repeats itself, is no help. A step's time is that of T
tokens less that of one, so that what comes before cancels out, over T - 1; llama.cpp and this library keep the prompt
between calls, so that little does. `--tokens 1` times reading the prompt, which then nobody keeps.
Ratios are llama.cpp's time over each side's, or, without llama.cpp, plain's. The floor is the bytes that a step reads
over the bandwidth of a sum over as many bytes. Our plain tokens are first checked against transformers.generate on the
same weights. Wall time: run it on an idle machine. `--clock cpu --threads 1` counts the process's own time instead,
which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import transformers

import caw
from caw.cost.machine import processor
from caw.models.sources import file_or_folder

TEXT = "Tea is a drink that is made by pouring hot water over leaves. "
Side = Callable[[int], Any]


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def seconds(call: Callable[[], Any], clock: str) -> float:
    start = CLOCKS[clock]()
    call()
    return CLOCKS[clock]() - start


def ours(model: Any, tokenizer: Any, rows: list[list[int]], kept: bool, **marking: Any) -> Side:
    """kept: whether prompts are read once, for all calls."""
    marking |= {"prompt_cache": caw.PromptCache()} if kept else {}

    def generate(tokens: int) -> list[list[int]]:
        length = {"max_new_tokens": tokens, "min_new_tokens": tokens, "batch_size": len(rows)}
        return caw.generate(model, tokenizer, rows, return_trace=False, progress=False, **length, **marking).sequences

    return generate


def theirs(model: Any, rows: list[list[int]]) -> Side:
    """transformers' own greedy generate."""
    ids = torch.tensor(rows)
    given = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
    return lambda tokens: model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, **given)


def llama(path: str, rows: list[list[int]], kept: bool, tokens: int, threads: int) -> Side:
    """Greedy completions of all rows at once, a slot each, which keeps its prompt if so told."""
    package = importlib.import_module("xllamacpp")
    settings = package.CommonParams()
    settings.model.path, settings.n_parallel, settings.warmup = path, len(rows), True
    settings.n_ctx = len(rows) * (max(map(len, rows)) + tokens + 64)
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    settings.verbosity = -1
    server = package.Server(settings)
    pool = ThreadPoolExecutor(len(rows))

    def one(slot: int, tokens: int) -> int:
        asked = {"prompt": rows[slot], "n_predict": tokens, "temperature": 0.0, "ignore_eos": True,
                 "cache_prompt": kept, "id_slot": slot}  # fmt: skip
        answer = server.handle_completions(asked)
        made = answer.get("usage", {}).get("completion_tokens", answer.get("tokens_predicted"))
        if made != tokens:
            raise RuntimeError(f"expected {tokens} tokens of llama.cpp, got {made}: {str(answer)[:300]}")
        return int(made)

    return lambda tokens: list(pool.map(lambda slot: one(slot, tokens), range(len(rows))))


def measure(calls: dict[str, Side], tokens: int, rounds: int, clock: str) -> dict[str, list[float]]:
    """Seconds a step of each side in each round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    lengths = (tokens, 1) if tokens > 1 else (1,)
    for call in calls.values():
        call(tokens)
    for _ in range(rounds):
        for name, call in calls.items():
            whole, *part = (seconds(lambda call=call, n=n: call(n), clock) for n in lengths)
            times[name].append((whole - sum(part)) / max(tokens - 1, 1))
    return times


def floor(model: Any, rounds: int, clock: str) -> tuple[int, float]:
    """(bytes that a step reads, seconds to read as many): of an embedding it reads a row, unless the head shares it."""
    held = {t.data_ptr(): t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers())}
    table, head = model.get_input_embeddings().packed, model.get_output_embeddings()
    if head.packed.data_ptr() != table.data_ptr():
        del held[table.data_ptr()]
    size = sum(held.values())
    buffer = torch.ones(size // 4)
    return size, min(seconds(buffer.sum, clock) for _ in range(rounds + 2))


def check(model: Any, plain: Side, rows: list[list[int]], tokens: int) -> None:
    if plain(tokens) != theirs(model, rows)(tokens)[:, len(rows[0]) :].tolist():
        raise RuntimeError("expected the tokens of transformers.generate on the same weights, got others")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--evaluator", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prefix", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--speculate", choices=["auto"])
    parser.add_argument("--without-llama", action="store_true")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--out")
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    model, tokenizer = caw.load_model(arguments.model, device="cpu", weights="file")
    loading = time.perf_counter() - start
    size, least = floor(model, 4 * arguments.rounds, arguments.clock)
    drafting = {"speculate": arguments.speculate}
    marking = {"watermark": caw.KGW(key=1), "policy": caw.CapacityPolicy(arguments.evaluator)} | drafting
    rounding = caw.load_model(arguments.model, device="cpu", weights="file-fast")[0] if arguments.fast else None
    wanted = arguments.bfloat16 or arguments.transformers
    wide = caw.load_model(arguments.model, device="cpu", dtype="bfloat16")[0] if wanted else None
    ids = tokenizer(TEXT * (arguments.prefix // 10 + 1))["input_ids"]
    found = []
    print(f"loaded in {loading:.2f} s; {size / 1e6:.0f} MB a step, which takes {least * 1e3:.2f} ms to read")
    print("| batch | side | ms a step | ratio (quartiles) | of the floor's speed |")
    print("| --- | --- | ---: | --- | ---: |")
    for batch in arguments.batches:
        rows = [ids[b : arguments.prefix + b] for b in range(batch)]
        kept = arguments.tokens > 1
        calls: dict[str, Side] = {}
        if not arguments.without_llama:
            calls["llama.cpp"] = llama(
                str(file_or_folder(arguments.model)), rows, kept, arguments.tokens, arguments.threads
            )
        calls["plain"] = ours(model, tokenizer, rows, kept, **drafting)
        calls["kgw+caw"] = ours(model, tokenizer, rows, kept, **marking)
        if arguments.fast:
            calls["fast"] = ours(rounding, tokenizer, rows, kept, **drafting)
            calls["fast kgw+caw"] = ours(rounding, tokenizer, rows, kept, **marking)
        if arguments.bfloat16:
            calls["bfloat16"] = ours(wide, tokenizer, rows, kept, **drafting)
            calls["bfloat16 kgw+caw"] = ours(wide, tokenizer, rows, kept, **marking)
        if arguments.transformers:
            calls["bfloat16 transformers"] = theirs(wide, rows)
        check(model, calls["plain"], rows, arguments.tokens)
        times = measure(calls, arguments.tokens, arguments.rounds, arguments.clock)
        baseline = next(iter(calls))
        for name, taken in times.items():
            ratios = sorted(a / b for a, b in zip(times[baseline], taken, strict=True))
            low, middle, high = (ratios[len(ratios) * k // 4] for k in (1, 2, 3))
            step = statistics.median(taken)
            print(
                f"| {batch} | {name} | {step * 1e3:.1f} | {middle:.2f} ({low:.2f} - {high:.2f}) | {least / step:.2f} |"
            )
            found.append({"batch": batch, "side": name, "seconds": taken, "over": baseline, "ratios": ratios})
    if arguments.out:
        versions = {"caw": caw.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
        report = {"arguments": vars(arguments), "processor": processor(), "versions": versions, "bytes": size,
                  "floor": least, "loading": loading, "rows": found}  # fmt: skip
        with open(arguments.out, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
