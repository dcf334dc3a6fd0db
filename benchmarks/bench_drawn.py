"""What drawing tokens costs over taking the likeliest: a step's time, greedy and drawn, plain and marked.

    python benchmarks/bench_drawn.py [--batches 1 8 16] [--tokens 24] [--rounds 7] [--dtypes float32] [--out r.json]
    python benchmarks/bench_drawn.py --shapes tiny    # random weights

Milliseconds of processor time a step with one thread (wall time with more); the ways take turns, a round of each after
the other. A ratio is over plain greedy at the same batch: the median of the rounds' own ratios, with the least and the
greatest. "stages" says where the time goes; drawing is the ladder's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from stages import METHODS, STAGES, StageClock, watching

import caw
from caw.benchmark.machine import about
from caw.benchmark.subjects import SHAPES, Subject, load_subject, make_prompts
from caw.benchmark.timing import clock_for
from caw.watermarks import Watermark

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "T .7": {"do_sample": True, "temperature": 0.7},
    "T .7, top-p .95": {"do_sample": True, "temperature": 0.7, "top_p": 0.95},
    "T 1": {"do_sample": True},
    "T .7, top-k 40": {"do_sample": True, "temperature": 0.7, "top_k": 40},
    "T 1, min-p .05": {"do_sample": True, "min_p": 0.05},
}
MARKS: dict[str, Callable[[], Watermark | None]] = {
    "plain": lambda: None,
    "kgw": lambda: caw.KGW(key="drawn"),
    "exp": lambda: caw.EXP(key="drawn", strength="scale"),
    "synthid": lambda: caw.SynthID(key="drawn"),
}
BASE = "plain, greedy"


def steps_of(subject: Subject, batch: int, prompt: int, wanted: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """A generation for each mark and way; a text that ends early ends the run: it would make steps of fewer rows."""
    prompts = make_prompts(subject, batch, prompt)
    fixed = {"batch_size": batch, "max_new_tokens": wanted.tokens, "progress": False, "return_trace": False}

    def generate(mark: str, way: str) -> None:
        watermark, settings = marks[mark], {**fixed, **WAYS[way]}
        made = caw.generate(subject.model, subject.tokenizer, prompts, watermark=watermark, **settings).sequences
        if any(len(tokens) < wanted.tokens for tokens in made):
            raise SystemExit(f"expected texts of {wanted.tokens} tokens, one ended early ({mark}, {way}); use fewer")

    marks = {mark: MARKS[mark]() for mark in wanted.marks}
    return {f"{mark}, {way}": partial(generate, mark, way) for mark in wanted.marks for way in wanted.ways}


def measured(calls: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float]) -> dict[str, dict[str, Any]]:
    """Milliseconds a step by name, and over the base, after a round that does not count."""
    found: dict[str, list[StageClock]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            watch = StageClock(clock)
            with watching(watch):
                watch.run(call)
            if number:
                found[name].append(watch)
    base = [own_steps(watch) for watch in found[BASE]]
    return {name: row_of(watches, base) for name, watches in found.items()}


def own_steps(watch: StageClock) -> float:
    """Milliseconds a step, without what lies between the steps."""
    return 1e3 * sum(watch.seconds[name] for name in METHODS.values()) / watch.steps


def row_of(watches: list[StageClock], base: list[float]) -> dict[str, Any]:
    steps = [own_steps(watch) for watch in watches]
    ratios = [step / of for step, of in zip(steps, base, strict=True)]
    stages = {name: statistics.median(1e3 * w.seconds[name] / w.steps for w in watches) for name in STAGES}
    return {
        "step_ms": [round(f(steps), 3) for f in (statistics.median, min, max)],
        "ratio": [round(f(ratios), 3) for f in (statistics.median, min, max)],
        "stages": {name: round(value, 3) for name, value in stages.items() if value},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--shapes", choices=SHAPES, help="random weights of these shapes instead of --model")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS)[:4])
    parser.add_argument("--marks", nargs="+", choices=MARKS, default=["plain", "kgw", "exp"])
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    for dtype in arguments.dtypes:
        subject = load_subject(arguments.model, arguments.shapes, dtype, "cpu", None)
        _, clock = clock_for(subject.model.device, arguments.threads)
        for batch in arguments.batches:
            found = measured(steps_of(subject, batch, arguments.prompt, arguments), arguments.rounds, clock)
            print(f"\n{dtype}, batch {batch}\n| | ms a step | over {BASE} | ladder | record | forward |", flush=True)
            print("| --- | ---: | ---: | ---: | ---: | ---: |")
            for name, row in found.items():
                rows.append({"dtype": dtype, "batch": batch, "case": name, **row})
                stages = " | ".join(f"{row['stages'].get(stage, 0):.2f}" for stage in ("ladder", "record", "forward"))
                ratio = "{:.3f} ({:.3f} to {:.3f})".format(*row["ratio"])
                print(f"| {name} | {row['step_ms'][0]:.2f} | {ratio} | {stages} |", flush=True)
    if arguments.out:
        settings = {**vars(arguments), "out": None}
        arguments.out.write_text(json.dumps({"arguments": settings, **about(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
