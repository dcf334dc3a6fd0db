"""Where the time of a step goes: ladder, forward, record, evaluator, selection, commit, and what lies between.

Steps that are CUDA graphs are one launch and cannot be taken apart: this is for steps that run call by call, on a CPU.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from caw.benchmark.machine import about
from caw.benchmark.sizes import SHAPES
from caw.benchmark.timing import Clock
from caw.decoding import decoder
from caw.decoding.choosing import Choosing
from caw.decoding.eager_step import EagerStep

# methods of a step and its `Choosing`, and what their own time is called, what they call and is not listed included
METHODS = {
    "decode": "rest of the step",
    "ladder": "ladder",
    "forward": "forward",
    "record": "record",
    "evaluate_and_select": "evaluate + select",  # one operator
    "select": "select",
    "emit": "emit",
    "commit": "commit",
}
ONCE = ("prefill", "setup")  # of a run: prompts through the model; caches, states and weights made ready
PREFILL, SETUP = ONCE
OUTSIDE = "host loop"
STAGES = ("ladder", "forward", "record", "evaluate + select", "select", "emit", "commit", "rest of the step", OUTSIDE)


class StageClock:
    """Adds up each stage's own seconds: what a stage calls that is a stage itself is not counted twice."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.clock, self.seconds, self.steps = clock, dict.fromkeys((*ONCE, *STAGES), 0.0), 0
        self._inner = [0.0]  # of each open stage, the seconds of stages inside it

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time added to the stage."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            start = self.clock()
            try:
                return function(*args, **kwargs)
            finally:
                spent = self.clock() - start
                self.seconds[stage] += spent - self._inner.pop()
                self._inner[-1] += spent
                self.steps += stage == METHODS["decode"]

        return call

    def run(self, call: Callable[[], Any]) -> None:
        """A whole generation; what is neither setup, prefill nor a step is the host loop's."""
        start, before = self.clock(), self._inner[-1]
        call()
        self.seconds[OUTSIDE] += self.clock() - start - (self._inner[-1] - before)


@contextmanager
def watching(clock: StageClock) -> Iterator[None]:
    """Inside the block every step of this process, and every prefill, reports to the clock."""
    owners = {name: next(c for c in (*EagerStep.__mro__, Choosing) if name in c.__dict__) for name in METHODS}
    real = {name: getattr(owner, name) for name, owner in owners.items()}
    real_prefill, real_init = decoder.prefill, decoder.Decoder.__init__
    try:
        for name, stage in METHODS.items():
            setattr(owners[name], name, clock.timed(stage, real[name]))
        decoder.prefill = clock.timed(PREFILL, real_prefill)
        decoder.Decoder.__init__ = clock.timed(SETUP, real_init)  # type: ignore[method-assign]
        yield
    finally:
        decoder.prefill, decoder.Decoder.__init__ = real_prefill, real_init  # type: ignore[method-assign]
        for name, function in real.items():
            setattr(owners[name], name, function)


def interleaved(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int,
    clock: Clock = time.perf_counter,
    watching: Callable[[StageClock], AbstractContextManager[None]] = watching,
) -> dict[str, list[StageClock]]:
    """The clocks of each call's rounds, all calls in turn, after one round that does not count."""
    found: dict[str, list[StageClock]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            watch = StageClock(clock)
            with watching(watch):
                watch.run(call)
            if number:
                found[name].append(watch)
    return found


def options(text: str | None, *, batches: list[int], prompt: int, tokens: int, rounds: int) -> argparse.ArgumentParser:
    """The options that scripts about a step share, with these defaults. text: a script's docstring."""
    parser = argparse.ArgumentParser(description=(text or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--shapes", choices=SHAPES, help="random weights of these shapes instead of --model")
    parser.add_argument("--batches", type=int, nargs="+", default=batches)
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--prompt", type=int, default=prompt)
    parser.add_argument("--tokens", type=int, default=tokens)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--out", type=Path)
    return parser


def save(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    if arguments.out:
        settings = {**vars(arguments), "out": None}
        arguments.out.write_text(json.dumps({"arguments": settings, **about(), "rows": rows}, indent=1) + "\n")
