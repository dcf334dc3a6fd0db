"""Timing that is robust on a busy machine: modes take turns, medians with quartiles, ratios within a round."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from caw.decoding.trace import DraftCounts

Clock = Callable[[], float]
GRAPH_STEPS = 32  # fewer steps are not captured at all, see `decoding/capture/run_ahead.py`


@dataclass
class Made:
    """What one call generated: new tokens of each sequence, seconds of preparation (capturing graphs) in it, and what
    drafts did for each sequence, where it had any."""

    tokens: list[list[int]]
    preparation: float = 0.0
    drafts: list[DraftCounts] = field(default_factory=list)


Call = Callable[[int], Made]  # new tokens per sequence -> what was generated


@dataclass(frozen=True)
class Summary:
    """Median and quartiles of n samples."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Summary":
        if not samples:
            raise ValueError("expected at least one sample, got none; measure at least one round")
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else [samples[0]] * 3
        return cls(statistics.median(samples), low, high, len(samples))

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass
class Times:
    """Seconds in each round. first: until the first token of every sequence; step: per further token; preparation: of
    the longest run."""

    first: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    preparation: list[float] = field(default_factory=list)


def clock_for(device: torch.device, threads: int) -> tuple[str, Clock]:
    """(name, clock): processor time of the thread where one thread does all the work, else wall time."""
    if device.type == "cpu" and threads == 1:
        return "thread_time", time.thread_time
    return "perf_counter", time.perf_counter


def short_run(tokens: int, device: torch.device) -> int:
    """Tokens of the run taken off the long one's time. On a GPU both or none capture; ValueError if that cannot be."""
    if device.type == "cpu":
        return 1
    if tokens == GRAPH_STEPS:
        raise ValueError(f"tokens must be more than {GRAPH_STEPS} on a GPU, whose steps are captured, got {tokens}")
    return GRAPH_STEPS if tokens > GRAPH_STEPS else max(1, tokens // 2)


def measure(
    calls: Mapping[str, Call],
    tokens: int,
    rounds: int,
    clock: Clock,
    short: int,
    progress: Callable[[str], None] = lambda message: None,
    seconds: float | None = None,
    after: Callable[[dict[str, Times]], None] = lambda times: None,
) -> dict[str, Times]:
    """Times of every call in `rounds` rounds, each round in another order.

    Args:
        calls: must have run before: what compiles on the first call is not for this function.
        tokens: of the long run, at least 2. short: of the run taken off it, below `tokens`.
        seconds: no round is begun once they have passed; None = all rounds. One round is always run.
        after: called after each round with the times so far.
    """
    if not 1 <= short < tokens:
        raise ValueError(f"a token's time needs at least 2 tokens, got {tokens}; generate more")
    times = {name: Times() for name in calls}
    order, shuffle = list(calls), random.Random(0)
    # a full garbage collection takes as long as several steps and would be charged to whichever side is next
    gc.collect()
    gc.freeze()
    began = time.monotonic()
    try:
        for number in range(rounds):
            if number and seconds is not None and time.monotonic() - began > seconds:
                break
            shuffle.shuffle(order)
            for name in order:
                progress(f"round {number + 1} of {rounds}: {name}")
                _one_round(calls[name], times[name], tokens, clock, short)
            after(times)
    finally:
        gc.unfreeze()
    return times


def _one_round(call: Call, times: Times, tokens: int, clock: Clock, short: int) -> None:
    first = _seconds(call, 1, clock)[0]
    less = first if short == 1 else _seconds(call, short, clock)[0]
    whole, preparation = _seconds(call, tokens, clock)
    times.first.append(first)
    times.step.append((whole - less) / (tokens - short))
    times.preparation.append(preparation)


def _seconds(call: Call, tokens: int, clock: Clock) -> tuple[float, float]:
    """(seconds of the run without its preparation, seconds of preparation)."""
    start = clock()
    made = call(tokens)
    return clock() - start - made.preparation, made.preparation


class PreparationWatch:
    """The `report` callback of `caw.generate`: adds up the seconds between a message and the "" that ends it."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.clock, self.seconds = clock, 0.0
        self._since: float | None = None

    def __call__(self, message: str) -> None:
        now = self.clock()
        if self._since is not None:
            self.seconds += now - self._since
        self._since = now if message else None


def ratios(samples: Sequence[float], base: Sequence[float]) -> Summary:
    """Summary of samples[r] / base[r] over the rounds r."""
    return Summary.of([s / b for s, b in zip(samples, base, strict=True)])


def scaled(samples: Sequence[float], factor: float) -> dict[str, Any]:
    return Summary.of([s * factor for s in samples]).as_dict()
