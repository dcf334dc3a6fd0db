"""What a target costs: the share of a step's time that the closed loop takes, on a CPU.

    python benchmarks/bench_loop.py [--model smollm2-135m] [--dtypes bfloat16 float32] [--batches 1 8] [--tokens 64]
        [--rounds 7] [--watermarks kgw exp] [--out r.json]

Processor time of one thread. Texts are marked under CAW with a target of 1e-12, which they do not reach, so that the
loop has work at every token, and without drafts: with them it has as much to do for each token, and a token costs less.
What a step does for the loop is timed inside whole runs: a difference between two runs would be lost in the machine's
noise. share: median, least and greatest of the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from bench_detection import PROMPTS
from stages import STAGES, StageClock, watching

import caw
from caw.benchmark.machine import about
from caw.decoding.choosing import Choosing
from caw.decoding.closed_loop import ClosedLoop
from caw.ladder import Ladder

LOOP = "loop"
# all that a step does for its loop; besides, in a ladder, what each row's factor leaves of it (`select`, then `first`)
METHODS = [(ClosedLoop, name) for name in ("steer", "aim", "count")] + [(Ladder, "first")]
MARKS = {"kgw": caw.KGW(key=1, delta=2.5), "exp": caw.EXP(key=1)}


@contextmanager
def watching_the_loop(clock: StageClock) -> Iterator[None]:
    """Inside the block every closed loop of this process reports to the clock."""
    real = [
        (owner, name, getattr(owner, name)) for owner, name in (*METHODS, (Choosing, "ladder"), (Choosing, "select"))
    ]
    clock.seconds[LOOP], making = 0.0, [False]
    ladder, select = Choosing.ladder, Choosing.select
    timed = clock.timed(LOOP, select)

    def with_mark(self: Choosing, state: Any) -> Any:
        making[0] = True
        try:
            return ladder(self, state)
        finally:
            making[0] = False

    def told_apart(self: Choosing, *arguments: Any) -> Any:
        return (timed if making[0] else select)(self, *arguments)

    try:
        for owner, name in METHODS:
            setattr(owner, name, clock.timed(LOOP, getattr(owner, name)))
        Choosing.ladder, Choosing.select = with_mark, told_apart  # type: ignore[method-assign]
        yield
    finally:
        for owner, name, method in real:
            setattr(owner, name, method)


def once(loaded: Any, mark: Any, policy: Any, batch: int, tokens: int) -> tuple[float, float]:
    """(seconds a step, of them the loop's)."""
    length = {"max_new_tokens": tokens, "min_new_tokens": tokens, "batch_size": batch}
    clock = StageClock(time.thread_time)
    with watching_the_loop(clock), watching(clock):
        clock.run(lambda: caw.generate(
            *loaded, list(PROMPTS[:batch]), chat=True, watermark=mark, policy=policy, speculate=None,
            return_trace=False, progress=False, **length,
        ))  # fmt: skip
    whole = sum(clock.seconds[stage] for stage in (*STAGES, LOOP))
    return whole / clock.steps, clock.seconds[LOOP] / clock.steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--watermarks", nargs="+", default=list(MARKS), choices=MARKS)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if max(options.batches) > len(PROMPTS):
        raise SystemExit(f"expected batches up to {len(PROMPTS)}, as many prompts as there are, got {options.batches}")
    torch.set_num_threads(1)
    policy, rows = caw.CapacityPolicy(options.model, target=1e-12), []
    for dtype in options.dtypes:
        loaded = caw.load_model(options.model, device="cpu", dtype=dtype)
        for name in options.watermarks:
            for batch in options.batches:
                once(loaded, MARKS[name], policy, batch, 4)
                made = [once(loaded, MARKS[name], policy, batch, options.tokens) for _ in range(options.rounds)]
                shares = sorted(loop / step for step, loop in made)
                step, loop = (1e3 * statistics.median(times) for times in zip(*made, strict=True))
                row = {
                    "dtype": dtype, "watermark": name, "batch": batch,
                    "step_ms": round(step, 3), "loop_ms": round(loop, 4),
                    "share": [round(share, 5) for share in (statistics.median(shares), shares[0], shares[-1])],
                }  # fmt: skip
                rows.append(row)
                print(*(f"{key}={value}" for key, value in row.items()), flush=True)
    if options.out:
        arguments = {key: value for key, value in vars(options).items() if key != "out"}
        found = {"arguments": arguments, **about(), "rows": rows}
        options.out.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
