"""What a step spends its time on, greedy and drawn, plain and marked, beside the least that its bytes take.

    python benchmarks/bench_parts.py [--batches 1 8 16] [--tokens 32] [--rounds 3] [--prompt 128] [--out r.json]
    python benchmarks/bench_parts.py --dtypes float32 bfloat16 --threads 1 2

Milliseconds of processor time that a token of every text takes, prefill excluded, in steps without drafts, with one
thread (wall time with more); medians of the rounds, in which the ways take turns. All layers are one operator: after
each call it runs once more with empty prefixes, which is not counted; "attention" is the difference, "products" the
rest. "bookkeeping" is all that has no row of its own. The floor is bytes over the bandwidth of a sum: weights once a
step, and for attention the keys and values of all prefixes.
"""

import argparse
import itertools
import statistics
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from bench_drawn import CAW, WAYS, steps_of
from bench_floor import floor
from stages import METHODS, OUTSIDE, StageClock, interleaved, options, save, watching

from caw import ops
from caw.benchmark.subjects import Subject, load_subject
from caw.benchmark.timing import clock_for
from caw.decoding.choosing import Choosing

LAYERS, EMPTY, HEAD, SAMPLING, ASIDE = "layers", "layers, empty prefixes", "head", "sampling", "not counted"
PARTS = ("products", "attention", "head", "records and candidates", "evaluator", "sampling", "bookkeeping")
READINGS = 30  # of as many bytes as the weights have; the fastest counts
CHOSEN = ("greedy", "T .7, top-p .95")


@contextmanager
def watching_parts(clock: StageClock) -> Iterator[None]:
    """As `watching`; layers, head and sampling are stages too."""
    clock.seconds |= dict.fromkeys((LAYERS, EMPTY, HEAD, SAMPLING, ASIDE), 0.0)
    stack = ops.decoder_stack
    names = [argument.name for argument in stack._schema.arguments]
    scratch_at, lengths_at, places_at = (names.index(name) for name in ("scratch", "lengths", "places"))
    layers, again = clock.timed(LAYERS, stack), clock.timed(EMPTY, stack)
    copied = clock.timed(ASIDE, lambda scratch, lengths: (scratch.clone(), torch.zeros_like(lengths)))

    def twice(*given: Any) -> Any:
        if given[places_at] is not None:  # a prompt's tokens, at places of their own
            return stack(*given)
        out, empty = layers(*given), list(given)
        empty[scratch_at], empty[lengths_at] = copied(given[scratch_at], given[lengths_at])
        again(*empty)
        return out

    patched = ((ops, "decoder_stack", twice), (ops, "small_linear", clock.timed(HEAD, ops.small_linear)),
               (Choosing, "drawn", clock.timed(SAMPLING, Choosing.drawn)))  # fmt: skip
    with ExitStack() as stages:
        stages.enter_context(watching(clock))
        for owner, name, function in patched:
            stages.enter_context(mock.patch.object(owner, name, function))
        yield


def parts_of(watch: StageClock, tokens: int) -> dict[str, float]:
    """Milliseconds a token by part, which add up; SystemExit where the layers were not one operator."""
    if not watch.seconds[LAYERS]:
        raise SystemExit("expected all layers to run as one operator, found that they did not; choose another model")
    spent = {name: 1e3 * seconds / tokens for name, seconds in watch.seconds.items()}
    found = {
        "products": spent[EMPTY], "attention": spent[LAYERS] - spent[EMPTY], "head": spent[HEAD],
        "records and candidates": spent["record"] + spent["ladder"],
        "evaluator": spent["evaluate + select"] + spent["select"], "sampling": spent[SAMPLING],
    }  # fmt: skip
    whole = sum(spent[name] for name in (*METHODS.values(), LAYERS, HEAD, SAMPLING, OUTSIDE))
    return {**found, "bookkeeping": whole - sum(found.values()), "all": whole}


def measured(
    calls: dict[str, Callable[[], Any]], tokens: int, rounds: int, clock: Callable[[], float]
) -> dict[str, dict[str, float]]:
    """Medians of milliseconds by way and part, after a round that does not count."""
    found = {
        name: [parts_of(watch, tokens) for watch in watches]
        for name, watches in interleaved(calls, rounds, clock, watching_parts).items()
    }
    return {
        name: {part: statistics.median(one[part] for one in all_) for part in all_[0]} for name, all_ in found.items()
    }


def floors(subject: Subject, batch: int, places: float, bandwidth: float) -> dict[str, float]:
    """Milliseconds that the bytes of a step take; places: of the cache that each text has filled."""
    model, config = subject.model, subject.model.config
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    weight = model.lm_head.weight
    head = weight.numel() * weight.element_size()
    heads = config.num_key_value_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    kept = 2 * config.num_hidden_layers * heads * weight.element_size() * batch * places
    spent = {"products": size - head, "attention": kept, "head": head}
    return {part: 1e3 * moved / bandwidth for part, moved in {**spent, "all": size + kept}.items()}


def main() -> None:
    parser = options(__doc__, batches=[1, 8, 16], prompt=128, tokens=32, rounds=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(CHOSEN))
    parser.add_argument("--marks", nargs="+", default=["plain", "kgw" + CAW])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    wanted = argparse.Namespace(**vars(arguments), slots=None)
    rows: list[dict[str, Any]] = []
    for dtype, threads in itertools.product(arguments.dtypes, arguments.threads):
        torch.set_num_threads(threads)
        subject = load_subject(arguments.model, arguments.shapes, dtype, "cpu", None)
        _, clock = clock_for(subject.model.device, threads)
        size, seconds = floor(subject.model, READINGS)
        for batch in arguments.batches:
            calls = steps_of(subject, batch, arguments.prompt, wanted)
            found = measured(calls, arguments.tokens, arguments.rounds, clock)
            found["floor"] = floors(subject, batch, arguments.prompt + arguments.tokens / 2, size / seconds)
            about_it = {"dtype": dtype, "threads": threads, "batch": batch}
            rows += [{**about_it, "case": name, "parts": rounded(own)} for name, own in found.items()]
            print(f"\n{dtype}, threads: {threads}, batch {batch}: ms a token\n{table(found)}", flush=True)
    save(arguments, rows)


def rounded(parts: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in parts.items()}


def table(found: dict[str, dict[str, float]]) -> str:
    """Parts down, ways across."""
    lines = [f"| part | {' | '.join(found)} |", "| --- |" + " ---: |" * len(found)]
    for part in (*PARTS, "all"):
        cells = [f"{own[part]:.2f}" if part in own else "" for own in found.values()]
        lines.append(f"| {part} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
