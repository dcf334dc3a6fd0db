"""Decoding from a .gguf file's own blocks beside llama.cpp on the same file, in one run.

    python benchmarks/bench_quantization.py [--model smollm2-135m] [--evaluator smollm2-135m] [--batches 1 4 8]
        [--prefix 128] [--tokens 64] [--rounds 5] [--threads 2] [--bfloat16] [--transformers]
        [--delta 2.5] [--fast] [--speculate auto] [--clock wall] [--out r.json]

Sides: llama.cpp (the package xllamacpp, one slot a sequence; left out with --without-llama), this library
unwatermarked and with KGW under CAW, with --fast also by products that round their inputs to 8 bits, with --bfloat16
the dequantized model, both ways; with --transformers that model's own `generate`. They take turns. Without --speculate
no side drafts: a token takes a forward. Prompts are cut out of two pages of the documentation; rows is how many
candidates a marked step forwards in the mean for each text. A step's time is that of T tokens less that of one, over
T - 1, so that what comes before cancels out; llama.cpp and this library keep the prompt between calls, so that little
does. No text may end before its last token. `--tokens 1` times reading the prompt, which then nobody keeps.
Ratios are llama.cpp's time over each side's, or, without llama.cpp, plain's. The floor is the bytes that a step reads
over the bandwidth of a sum over as many bytes. Our plain tokens are first checked against transformers.generate on the
same weights. Wall time: run it on an idle machine. `--clock cpu --threads 1` counts the process's own time instead,
which a busy machine disturbs less.
"""

import argparse
import importlib
import importlib.metadata
import json
import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import caw
from caw.benchmark.machine import processor
from caw.models.sources import file_or_folder

DOCS = Path(__file__).resolve().parents[1] / "docs"
MARKED = "kgw+caw"
PAGES = ("how-it-works.md", "detection.md")  # prose that does not repeat itself, so that marks have candidates
REREAD = 8  # tokens of a kept prompt that llama.cpp may read again: of Gemma 3's windows five, before every text alike
APART = 37  # tokens between the beginnings of the prompts of a batch
Side = Callable[[int], Any]


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def seconds(call: Callable[[], Any], clock: str) -> float:
    start = CLOCKS[clock]()
    call()
    return CLOCKS[clock]() - start


def ours(model: Any, tokenizer: Any, rows: list[list[int]], kept: bool, **marking: Any) -> Side:
    """kept: whether prompts are read once, for all calls."""
    cache = caw.PromptCache() if kept else None
    marking |= {"prompt_cache": cache} if kept else {}

    def generate(tokens: int, *, trace: bool = False) -> Any:
        length = {"max_new_tokens": tokens, "batch_size": len(rows)}
        out = caw.generate(model, tokenizer, rows, return_trace=trace, progress=False, **length, **marking)
        # min_new_tokens would hide the end from every choice, which takes a step time that llama.cpp's takes not
        if any(len(sequence) < tokens for sequence in out.sequences):
            raise RuntimeError(
                f"expected texts of {tokens} tokens, got one that ended; take other prompts or fewer tokens"
            )
        if cache is not None and cache.missed > len(rows):
            raise RuntimeError(f"expected each prompt to be read once, got {cache.missed} readings of {len(rows)}")
        return out.trace if trace else out.sequences

    return generate


def candidates(call: Callable[..., Any], tokens: int) -> float:
    """Of a side of ours, in the mean of all tokens."""
    return statistics.mean(len(one) for trace in call(tokens, trace=True) for one in trace.candidates)


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
    pool, read = ThreadPoolExecutor(len(rows)), set[int]()

    def one(slot: int, tokens: int) -> int:
        asked = {"prompt": rows[slot], "n_predict": tokens, "temperature": 0.0, "ignore_eos": True,
                 "cache_prompt": kept, "id_slot": slot}  # fmt: skip
        answer = server.handle_completions(asked)
        made = answer.get("usage", {}).get("completion_tokens", answer.get("tokens_predicted"))
        if made != tokens:
            raise RuntimeError(f"expected {tokens} tokens of llama.cpp, got {made}: {str(answer)[:300]}")
        known = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        if kept and slot in read and known < len(rows[slot]) - REREAD:
            raise RuntimeError(f"expected llama.cpp to know nearly all of {len(rows[slot])} tokens, got {known}")
        read.add(slot)
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
    """Of texts whose prompts are read, and again of those whose prompts are kept."""
    expected = theirs(model, rows)(tokens)[:, len(rows[0]) :].tolist()
    if any(plain(tokens) != expected for _ in range(2)):
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
    parser.add_argument("--delta", type=float, default=2.5)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--speculate", choices=["auto"])
    parser.add_argument("--without-llama", action="store_true")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--out")
    return parser.parse_args()


def sides(
    arguments: argparse.Namespace, models: dict[str, Any], tokenizer: Any, rows: list[list[int]]
) -> dict[str, Side]:
    """By name; the first one is what the others are held against. models: by the word before the side's name."""
    kept, drafting = arguments.tokens > 1, {"speculate": arguments.speculate}
    policy = caw.CapacityPolicy(arguments.evaluator)
    marking = {"watermark": caw.KGW(key=1, delta=arguments.delta), "policy": policy} | drafting
    calls: dict[str, Side] = {}
    if not arguments.without_llama:
        path = str(file_or_folder(arguments.model))
        calls["llama.cpp"] = llama(path, rows, kept, arguments.tokens, arguments.threads)
    for word, model in models.items():
        if word != "transformers":
            calls[word or "plain"] = ours(model, tokenizer, rows, kept, **drafting)
            calls[f"{word} {MARKED}".strip()] = ours(model, tokenizer, rows, kept, **marking)
    if arguments.transformers:
        calls["bfloat16 transformers"] = theirs(models["transformers"], rows)
    return calls


def load(arguments: argparse.Namespace) -> tuple[dict[str, Any], Any, float]:
    """(models by the word before their sides' names, the tokenizer, seconds that loading the blocks took)."""
    start = time.perf_counter()
    model, tokenizer = caw.load_model(arguments.model, device="cpu", quantization="file")
    loading, models = time.perf_counter() - start, {"": model}
    if arguments.fast:
        models["fast"] = caw.load_model(arguments.model, device="cpu", quantization="file-fast")[0]
    if arguments.bfloat16 or arguments.transformers:
        wide = caw.load_model(arguments.model, device="cpu", dtype="bfloat16")[0]
        models |= {"bfloat16": wide} if arguments.bfloat16 else {}
        models |= {"transformers": wide} if arguments.transformers else {}
    return models, tokenizer, loading


def main() -> None:
    arguments = read_arguments()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    models, tokenizer, loading = load(arguments)
    size, least = floor(models[""], 4 * arguments.rounds, arguments.clock)
    text = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
    ids, found = tokenizer(text)["input_ids"], []
    print(f"loaded in {loading:.2f} s; {size / 1e6:.0f} MB a step, which takes {least * 1e3:.2f} ms to read")
    print("| batch | side | rows | ms a step | ratio (quartiles) | of the floor's speed |")
    print("| --- | --- | ---: | ---: | --- | ---: |")
    for batch in arguments.batches:
        rows = [ids[b * APART : b * APART + arguments.prefix] for b in range(batch)]
        calls = sides(arguments, models, tokenizer, rows)
        check(models[""], calls["plain"], rows, arguments.tokens)
        times = measure(calls, arguments.tokens, arguments.rounds, arguments.clock)
        baseline = next(iter(calls))
        for name, taken in times.items():
            ratios = sorted(a / b for a, b in zip(times[baseline], taken, strict=True))
            low, middle, high = (ratios[len(ratios) * k // 4] for k in (1, 2, 3))
            step, carried = statistics.median(taken), candidates(calls[name], arguments.tokens) if MARKED in name else 1
            print(
                f"| {batch} | {name} | {carried:.2f} | {step * 1e3:.1f} | {middle:.2f} ({low:.2f} - {high:.2f}) | "
                f"{least / step:.2f} |"
            )
            found.append({"batch": batch, "side": name, "rows": carried, "seconds": taken, "over": baseline,
                          "ratios": ratios})  # fmt: skip
    if arguments.out:
        names = ("caw", "torch", "transformers", *([] if arguments.without_llama else ["xllamacpp"]))
        versions = {name: importlib.metadata.version(name) for name in names}
        report = {"arguments": vars(arguments), "processor": processor(), "versions": versions, "bytes": size,
                  "floor": least, "loading": loading, "rows": found}  # fmt: skip
        with open(arguments.out, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
