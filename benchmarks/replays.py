"""The time of a kernel on a GPU: a graph of many calls, over more data than the cache holds, between two events."""

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import triton
import triton.language as tl

from caw.triton_kernels.launching import INTERPRETED, launch

CACHE = 256 << 20  # more than any GPU's second-level cache holds
MOST_COPIES, CALLS = 1024, 64  # of small data; calls in a graph at least
MOST = 1.02  # share of the read bandwidth; above it the clock, the bytes or the probe are wrong
READ_BLOCK, READERS = 4096, 8 * 132  # numbers of a load; programs, eight to each multiprocessor of an H100
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


@triton.jit
def _read_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """The sum of a program's share of x [size], whole blocks; one number is written, so that no load is left out."""
    total = tl.zeros((BLOCK,), tl.int32)
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, size, tl.num_programs(0) * BLOCK):
        total += tl.load(x_ptr + start + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(total, 0))


def read_bandwidth(device: str, small: bool) -> float:
    """Bytes per second that a kernel moves which only reads, 8 GiB or an eighth of the memory: the best of five.

    On a CPU torch's sum reads, but for a rehearsal, which interprets the kernel.
    """
    size = 8 * READ_BLOCK if small else min(8 << 30, torch.cuda.mem_get_info()[1] // 8) // 4 // READ_BLOCK * READ_BLOCK
    numbers = torch.ones(size, dtype=torch.int32, device=device)
    out = torch.zeros(READERS, dtype=torch.int32, device=device)
    programs = 2 if small else READERS

    def read(i: int) -> None:
        if device == "cpu" and not INTERPRETED:
            out[0] = numbers.sum()
            return
        given = {"x_ptr": numbers, "out_ptr": out, "size": size, "BLOCK": READ_BLOCK}
        launch(_read_kernel, (programs,), given, num_warps=8)

    once = timer(read, 1, device, small)
    best = 4 * size / min(once() for _ in range(5))
    if (found := int(out.sum())) != size:
        raise RuntimeError(
            f"expected a sum of {size} from the kernel that reads, got {found}; its time is worth nothing"
        )
    return best


def impossible(rows: Iterable[dict[str, Any]]) -> str:
    """A sentence if any row's share_of_bandwidth exceeds MOST: an error of the harness, no speed; else empty."""
    shares = [row["share_of_bandwidth"] for row in rows if row.get("share_of_bandwidth") is not None]
    if max(shares, default=0.0) <= MOST:
        return ""
    found = f"expected at most {MOST} of what a kernel moves that only reads, found {max(shares):.3f}"
    return f"{found}: the bytes, the clock or that kernel is wrong; believe no share of this run"


def copy_bandwidth(device: str, small: bool) -> float:
    """Bytes per second that a copy reads and writes together."""
    source = torch.ones((1 << 20) if small else (1 << 30), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    once = timer(lambda i: target.copy_(source), 1 if small else 4, device, small)
    return 2 * source.numel() / min(once() for _ in range(5))
