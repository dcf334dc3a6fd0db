"""Measured times for the model of a step: the duration of each kernel of a replay on the local GPU.

torch's profiler notes when every kernel of a replayed graph began and ended. Nothing runs between two kernels for it,
but watching takes time, and kernels that overlap are each counted whole: what they add up to is not the step's time,
which is measured alone, by events, and stands beside it. Where replay and model agree launch by launch every launch has
its own time. Where torch made another number of kernels than the model counts, this library's have theirs by name, and
the others stand under the names that the profiler gives them.
"""

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from replays import on_device
from step_times import Step, make_room, own_step, timed

from caw.benchmark.machine import about
from caw.benchmark.subjects import load_subject
from caw.benchmark.timing import clock_for
from caw.io.show import in_a_line
from caw.models.device import resolve_device

REPLAYS = 5
ROUNDS = 8  # of the step alone
OWN_END = "_kernel"


class Kernel(NamedTuple):
    """One of a replay, as the profiler calls it."""

    name: str
    us: float


def at_hand(name: str) -> bool:
    """Return whether the local GPU has this name, as in `step_model.DEVICES`; a GH200 is not an H200."""
    return torch.cuda.is_available() and name in re.findall(r"[a-z0-9]+", torch.cuda.get_device_name().lower())


def check_device(device: str | None) -> None:
    """Raise ValueError unless it is a GPU."""
    place = resolve_device(device)
    if place.type != "cuda":
        raise ValueError(f"expected a CUDA device to measure a step on, got {place.type}; leave --device out")


def traced(step: Step, replays: int) -> list[list[Kernel]]:
    """The kernels of each of so many replays, in the order in which they began."""
    found = []
    for number in range(replays + 1):
        step.reset()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step.graph.replay()
            torch.cuda.synchronize()
        if number:  # the first one starts the profiler
            found.append(kernels_of(profile.events()))
    return found


def kernels_of(events: Sequence[Any]) -> list[Kernel]:
    """Those of a trace; what the host did is left out."""
    on_gpu = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    on_gpu.sort(key=lambda event: event.time_range.start)
    return [Kernel(event.name, event.time_range.end - event.time_range.start) for event in on_gpu]


def medians(replays: Sequence[Sequence[Kernel]]) -> list[Kernel]:
    """Return the median of each kernel's times. RuntimeError if replays differ in their kernels."""
    names = [[kernel.name for kernel in replay] for replay in replays]
    if not names[0] or any(other != names[0] for other in names):
        counts = ", ".join(str(len(each)) for each in names)
        raise RuntimeError(f"expected the same kernels in every replay, got {counts}; run it again")
    times = zip(*[[kernel.us for kernel in replay] for replay in replays], strict=True)
    return [Kernel(name, statistics.median(of_one)) for name, of_one in zip(names[0], times, strict=True)]


def beside(kernels: Sequence[Kernel], launches: Sequence[str]) -> dict[str, Any]:
    """Match measured times to the model's launches, by their names in order.

    Returns aligned (whether every launch has its own time), each ([name, us], in order) and kernels (us of all of a
    name together).
    """
    own = {name for name in launches if name.endswith(OWN_END)}
    known = [_own_name(kernel.name, own) for kernel in kernels]
    aligned = known == [name if name in own else None for name in launches]
    names = launches if aligned else [mine or kernel.name for mine, kernel in zip(known, kernels, strict=True)]
    times = [round(kernel.us, 3) for kernel in kernels]
    sums: dict[str, float] = defaultdict(float)
    for name, us in zip(names, times, strict=True):
        sums[name] = round(sums[name] + us, 3)
    each = [list(pair) for pair in zip(names, times, strict=True)]
    return {"aligned": aligned, "each": each, "kernels": dict(sums)}


def _own_name(name: str, own: set[str]) -> str | None:
    """The model's name of one of this library's kernels; None for one of somebody else."""
    stripped = name.strip("_")
    return stripped if stripped in own else None


def measure(
    found: dict[str, Any], device: str | None, say: Callable[[str], None] = lambda message: None
) -> dict[str, Any]:
    """`step_model.run`'s result with what was measured here: measured_on, and in each row `measured`.

    That has step_us (of a step alone, median), kernels_us (of all kernels together), and what `beside` gives; or error,
    and the others go on. Mutates what it is given. Raises ValueError where there is no GPU.
    """
    check_device(device)
    about_step = found["arguments"]
    try:
        subject = load_subject("", about_step["shapes"], about_step["dtype"], device, None, about_step["weights"])
    except Exception as error:  # as for want of memory: what was worked out is told all the same
        for row in found["rows"]:
            row["measured"] = {"error": in_a_line(error)}
        return found
    place = subject.model.device
    _, clock = clock_for(place, torch.get_num_threads())
    found["measured_on"] = about(place)
    for row in found["rows"]:
        say(f"{row['mode']}, batch {row['batch']}, prefix {row['prefix']}")
        make_room(place)
        try:
            with torch.inference_mode(), on_device(place):
                step = own_step(row["mode"], subject, row["batch"], row["prefix"])
                once = timed(step, clock)
                alone = statistics.median(once() for _ in range(ROUNDS))
                kernels = medians(traced(step, REPLAYS))
        except Exception as error:  # of any kind, as Triton has its own: the other modes go on
            row["measured"] = {"error": in_a_line(error)}
            continue
        told = beside(kernels, [name for name, *_ in row["each"]])
        row["measured"] = {"step_us": 1e6 * alone, "kernels_us": sum(kernel.us for kernel in kernels), **told}
    return found
