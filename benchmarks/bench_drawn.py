"""What drawing tokens costs over taking the likeliest: a step's time, greedy and drawn, plain and marked.

    python benchmarks/bench_drawn.py [--batches 1 8 16] [--tokens 24] [--rounds 7] [--dtypes float32] [--out r.json]
    python benchmarks/bench_drawn.py --shapes tiny    # random weights
    python benchmarks/bench_drawn.py --marks plain exp synthid exp+caw synthid+caw --ways greedy "T .7, top-p .95"

Milliseconds of processor time a step with one thread (wall time with more); the ways take turns, a round of each after
the other. A ratio is over plain greedy at the same batch: the median of the rounds' own ratios, with the least and the
greatest; "over_race" is the same of SynthID over the race (EXP by scale) under the same policy and words. "stages" says
where the time goes; drawing is the ladder's. MARK+caw: under the capacity policy, looking ahead.
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
from caw.policies import CapacityPolicy, Policy
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
CAW = "+caw"
BASE = "plain, greedy"
RATIOS = ("ratio", "over_race")


def steps_of(subject: Subject, batch: int, prompt: int, wanted: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """A generation for each mark and way; a text that ends early ends the run: it would make steps of fewer rows."""
    prompts = make_prompts(subject, batch, prompt)
    fixed = {"batch_size": batch, "max_new_tokens": wanted.tokens, "progress": False, "return_trace": False}

    def generate(mark: str, way: str) -> None:
        watermark, policy = marks[mark]
        settings = {**fixed, **WAYS[way], "watermark": watermark, "policy": policy}
        made = caw.generate(subject.model, subject.tokenizer, prompts, **settings).sequences
        if any(len(tokens) < wanted.tokens for tokens in made):
            raise SystemExit(f"expected texts of {wanted.tokens} tokens, one ended early ({mark}, {way}); use fewer")

    marks = {mark: marked(mark, subject) for mark in wanted.marks}
    return {f"{mark}, {way}": partial(generate, mark, way) for mark in wanted.marks for way in wanted.ways}


def marked(name: str, subject: Subject) -> tuple[Watermark | None, Policy | None]:
    """A watermark, and its policy; None: its full strength."""
    policy = CapacityPolicy(evaluator=subject.evaluator) if name.endswith(CAW) else None
    return MARKS[name.removesuffix(CAW)](), policy


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
    rows = {name: row_of(watches, base) for name, watches in found.items()}
    for name, watches in found.items():
        race = found.get(name.replace("synthid", "exp")) if name.startswith("synthid") else None
        if race is not None:
            rows[name]["over_race"] = ratio_of([own_steps(w) for w in watches], [own_steps(w) for w in race])
    return rows


def own_steps(watch: StageClock) -> float:
    """Milliseconds a step, without what lies between the steps."""
    return 1e3 * sum(watch.seconds[name] for name in METHODS.values()) / watch.steps


def row_of(watches: list[StageClock], base: list[float]) -> dict[str, Any]:
    steps = [own_steps(watch) for watch in watches]
    stages = {name: statistics.median(1e3 * w.seconds[name] / w.steps for w in watches) for name in STAGES}
    return {
        "step_ms": [round(f(steps), 3) for f in (statistics.median, min, max)],
        "ratio": ratio_of(steps, base),
        "stages": {name: round(value, 3) for name, value in stages.items() if value},
    }


def ratio_of(steps: list[float], base: list[float]) -> list[float]:
    """Median, least and greatest of the rounds' ratios."""
    ratios = [step / of for step, of in zip(steps, base, strict=True)]
    return [round(f(ratios), 3) for f in (statistics.median, min, max)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--shapes", choices=SHAPES, help="random weights of these shapes instead of --model")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS)[:4])
    parser.add_argument(
        "--marks",
        nargs="+",
        choices=[*MARKS, *(name + CAW for name in MARKS if name != "plain")],
        default=["plain", "kgw", "exp"],
    )
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
            print(
                f"\n{dtype}, batch {batch}\n| | ms a step | over {BASE} | over the race | ladder | record | forward |",
                flush=True,
            )
            print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
            for name, row in found.items():
                rows.append({"dtype": dtype, "batch": batch, "case": name, **row})
                stages = " | ".join(f"{row['stages'].get(stage, 0):.2f}" for stage in ("ladder", "record", "forward"))
                ratio, race = ("{:.3f} ({:.3f} to {:.3f})".format(*row[k]) if k in row else "" for k in RATIOS)
                print(f"| {name} | {row['step_ms'][0]:.2f} | {ratio} | {race} | {stages} |", flush=True)
    if arguments.out:
        settings = {**vars(arguments), "out": None}
        arguments.out.write_text(json.dumps({"arguments": settings, **about(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
