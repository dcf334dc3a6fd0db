"""How near decoding on a CPU comes to its floor: the time it takes to read every weight once.

    python benchmarks/bench_floor.py [--model smollm2-135m] [--tokens 64] [--rounds 5] [--threads 2] [--out r.json]

A step must read every weight, whatever the batch. The floor is the bytes of the weights over the bandwidth with which
this machine reads as many bytes (a float32 sum over a buffer of that size, best of the rounds). A step's time is the
time of T tokens less that of T / 2 tokens, so that prefill cancels out. This library's unwatermarked decode and
transformers.generate are first checked to give the same tokens (float32; elsewhere equal lengths), then timed in
turns. "C = 2" is one forward of two candidates over one of a single token, behind 200 tokens, in turns too. Wall time:
run it on an idle machine.
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers

import caw
from caw.decoding.forward.attention import caw_attention
from caw.decoding.forward.branching import forward_candidates
from caw.decoding.forward.fused_forwards import FusedForwards
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.prefill import prefill

PREFIX = 200
PROMPT = "Tell me about the history of tea."


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def floor(model: Any, rounds: int) -> tuple[int, float]:
    """(bytes of all distinct weights, seconds to read as many)."""
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    buffer = torch.ones(size // 4)
    return size, min(seconds(buffer.sum) for _ in range(rounds + 2))


def sides(model: Any, tokenizer: Any, batch: int) -> dict[str, Callable[[int], list[list[int]]]]:
    """Name -> a call that generates that many tokens for each of `batch` prompts."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPT}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    rows = torch.tensor([ids] * batch)

    def ours(tokens: int) -> list[list[int]]:
        length = {"max_new_tokens": tokens, "min_new_tokens": tokens, "batch_size": batch}
        return caw.generate(model, tokenizer, [ids] * batch, return_trace=False, progress=False, **length).sequences

    def theirs(tokens: int) -> list[list[int]]:
        mask, pad = torch.ones_like(rows), tokenizer.eos_token_id
        length = {"max_new_tokens": tokens, "min_new_tokens": tokens}
        out = model.generate(rows, attention_mask=mask, do_sample=False, pad_token_id=pad, **length)
        return out[:, rows.shape[1] :].tolist()

    return {"caw": ours, "transformers": theirs}


def measure(calls: dict[str, Callable[[int], Any]], tokens: int, rounds: int) -> dict[str, list[float]]:
    """Seconds a step of each side in each round."""
    half = tokens // 2
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            whole, part = seconds(lambda call=call: call(tokens)), seconds(lambda call=call: call(half))
            times[name].append((whole - part) / (tokens - half))
    return times


@torch.inference_mode()
def candidates_ratio(model: Any, batch: int, rounds: int) -> list[float]:
    """Time of a forward of two candidates a sequence over that of one, of each round."""
    ids = [[5 + (7 * i + 3 * b) % 1000 for i in range(PREFIX)] for b in range(batch)]
    cache = SiblingCache(model.config.num_hidden_layers, batch, PREFIX + 1, 2, torch.device("cpu"))
    tokens = torch.tensor([[11, 12]] * batch)
    found = []
    with caw_attention(model), FusedForwards(model, enabled=True):
        prefill(model, cache, range(batch), ids, 0)
        for _ in range(rounds + 2):
            one, two = (
                seconds(lambda c=c: forward_candidates(model, cache, tokens[:, :c], "tree", PREFIX)) for c in (1, 2)
            )
            found.append(two / one)
    return found[2:]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--out")
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    rows = []
    print(
        "| dtype, batch | floor, ms a step | caw: ms, share of the floor's speed | transformers: ms | ratio | C = 2 |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for dtype in arguments.dtypes:
        model, tokenizer = caw.load_model(arguments.model, dtype=dtype, device="cpu")
        # once for all batches: measured for each by itself it differed by a fifth, and a busy moment flatters the share
        size, least = floor(model, 4 * arguments.rounds)
        for batch in arguments.batches:
            calls = sides(model, tokenizer, batch)
            first = {name: call(arguments.tokens) for name, call in calls.items()}
            if dtype == "float32" and first["caw"] != first["transformers"]:
                raise RuntimeError("expected the same tokens from both sides, got different ones")
            times = measure(calls, arguments.tokens, arguments.rounds)
            ratios = sorted(t / c for t, c in zip(times["transformers"], times["caw"], strict=True))
            middle = {name: statistics.median(found) for name, found in times.items()}
            two = sorted(candidates_ratio(model, batch, 4 * arguments.rounds))
            row = {
                "dtype": dtype,
                "batch": batch,
                "bytes": size,
                "floor": least,
                "seconds": times,
                "two_candidates": two,
                "share_of_floor": least / middle["caw"],
                "ratio": statistics.median(ratios),
            }
            rows.append(row)
            print(
                f"| {dtype}, {batch} | {1e3 * least:.1f} | {1e3 * middle['caw']:.1f}, {row['share_of_floor']:.0%} "
                f"| {1e3 * middle['transformers']:.1f} | {row['ratio']:.2f} ({ratios[0]:.2f} - {ratios[-1]:.2f}) "
                f"| {statistics.median(two):.2f} ({two[len(two) // 4]:.2f} - {two[3 * len(two) // 4]:.2f}) |",
                flush=True,
            )
    if arguments.out:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__, "caw": caw.__version__}
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump({"arguments": vars(arguments), "versions": versions, "rows": rows}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
