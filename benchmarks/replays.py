"""The time of a kernel on a GPU: a graph of many calls, over more data than the cache holds, between two events."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch

CACHE = 256 << 20  # more than any GPU's second-level cache holds
MOST_COPIES, CALLS = 1024, 64  # of small data; calls in a graph at least
Call = Callable[[int], Any]  # takes the number of the data's copy


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Streams, graphs and events are made on the current device, which need not be the one that is timed."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def copies_of(make: Callable[[], Any], size: int, few: bool) -> list[Any]:
    """As many as are larger than the cache together; size: bytes of one. few: one."""
    return [make() for _ in range(1 if few else min(MOST_COPIES, max(1, -(-CACHE // max(size, 1)))))]


def timer(call: Call, count: int, device: str, plain: bool = False) -> Callable[[], float]:
    """A function that gives the seconds of one of `count` calls: a replay's on a GPU.

    plain: calls that are not captured, as on a CPU. Raises what the capture raises.
    """
    if device == "cpu" or plain:  # a sanitizer needs memory that is not captured

        def called() -> float:
            start = time.perf_counter()
            for i in range(count):
                call(i)
            if device != "cpu":
                torch.cuda.synchronize()
            return (time.perf_counter() - start) / count

        return called
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(3):
            call(i)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            call(i)
    return replay_timer(graph, count)


def replay_timer(graph: Any, count: int, replays: int = 1) -> Callable[[], float]:
    """A function that replays a CUDA graph and gives its seconds on the device, by two events, over `count`."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def replayed() -> float:
        marks[0].record()
        for _ in range(replays):
            graph.replay()
        marks[1].record()
        marks[1].synchronize()
        return marks[0].elapsed_time(marks[1]) / 1e3 / count

    return replayed


def copy_bandwidth(device: str, small: bool) -> float:
    """Bytes per second that a copy reads and writes together."""
    source = torch.ones((1 << 20) if small else (1 << 30), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    once = timer(lambda i: target.copy_(source), 1 if small else 4, device, small)
    return 2 * source.numel() / min(once() for _ in range(5))
