"""Time of a step against prefix length, candidates, batch and vocabulary, beside the least that the machine allows.

    python benchmarks/bench_scaling.py [--axes prefix candidates ...] [--rounds 7] [--out r.json] [--plot r.svg]
    python benchmarks/bench_scaling.py --shapes llama-2-7b --dtype float16 --longest 16384   (on a GPU)

A step is one forward of C candidates a sequence behind the prefix, the record of the original's row, and the commit.
The floor of a step is the larger of two times: its bytes (every weight once, the keys and values of the prefix) over
the bandwidth with which this machine reads as many bytes, and its arithmetic over the speed of a large matrix product.
All points of all axes take turns in every round; a line is fitted through the medians and through the floors, and the
slopes are compared: extra time per 1000 tokens of prefix, per candidate, per sequence, per 1000 entries of the
vocabulary. The prefix is one prompt of 128 tokens repeated: no value changes the time. On a GPU a step is a CUDA graph.
Processor time with one thread on a CPU, else wall time: run it on an idle machine. `--axes memory` measures peak memory
of generating, each mode in fresh processes, one a round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from caw.benchmark import peak_memory
from caw.benchmark.machine import about
from caw.benchmark.subjects import SHAPES, load_subject, random_model
from caw.benchmark.timing import Summary, clock_for
from caw.decoding.capture.cuda_graph import CapturedStep
from caw.decoding.forward.attention import caw_attention
from caw.decoding.forward.branching import forward_candidates
from caw.decoding.forward.fused_forwards import FusedForwards
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.prefill import prefill
from caw.io.figures import save_figure
from caw.record import Record

START = 128  # tokens of prefix where it is not what varies
AXES = {
    # axis: (its unit in the fitted slope, how many of it)
    "prefix": ("1000 tokens", 1000),
    "candidates": ("candidate", 1),
    "batch": ("sequence", 1),
    "vocabulary": ("1000 entries", 1000),
}
CANDIDATES, BATCHES = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32, 64)
PREFIXES, VOCABULARIES = (128, 512, 1024, 2048, 4096, 8192, 16384), (8192, 32768, 65536, 131072)
MEMORY_MODES = ("plain", "kgw+caw", "exp+caw")


@dataclass(frozen=True)
class Machine:
    """bandwidth: bytes a second of reading; arithmetic: float operations a second of a matrix product."""

    bandwidth: float
    arithmetic: float

    def floor(self, model: Any, batch: int, prefix: int, candidates: int) -> float:
        """Seconds that a step needs at least."""
        config = model.config.get_text_config(decoder=True)
        heads, size = config.num_attention_heads, model.dtype.itemsize
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        kept = 2 * config.num_hidden_layers * config.num_key_value_heads * dim * prefix * batch * size
        weights = sum(p.numel() for p in model.parameters())
        if not config.tie_word_embeddings:  # of the input's table a step reads one line a row
            weights -= model.get_input_embeddings().weight.numel()
        rows = batch * candidates
        attention = 4 * config.num_hidden_layers * heads * dim * prefix * rows
        work = 2 * weights * rows + attention
        return max((weights * size + kept) / self.bandwidth, work / self.arithmetic)


class Step:
    """A step of `candidates` per sequence behind `prefix` tokens, over and over at the same place."""

    def __init__(self, model: Any, cache: SiblingCache, prefix: int, candidates: int) -> None:
        self.model, self.cache, self.prefix = model, cache, prefix
        device = cache.lengths.device
        self.tokens = (torch.arange(cache.batch * candidates, device=device) + 11).view(cache.batch, candidates)
        self.choice = torch.zeros(cache.batch, dtype=torch.int64, device=device)
        self.active = torch.ones(cache.batch, dtype=torch.bool, device=device)
        _, self.clock = clock_for(device, torch.get_num_threads())
        self.captured = CapturedStep(self._once, "scaling") if device.type == "cuda" else None

    def _once(self) -> None:
        limit = self.cache.capacity if self.captured is not None else self.prefix
        logits = forward_candidates(self.model, self.cache, self.tokens, "tree", limit)
        Record.from_logits(logits[:, 0])
        self.cache.commit(self.choice, self.active)

    def __call__(self) -> float:
        """Seconds of one step."""
        self.cache.lengths.fill_(self.prefix)
        if self.captured is None:
            start = self.clock()
            self._once()
            return self.clock() - start
        torch.cuda.synchronize()
        start = time.perf_counter()
        self.captured()
        torch.cuda.synchronize()
        return time.perf_counter() - start


def filled_cache(model: Any, batch: int, prefix: int, slots: int) -> SiblingCache:
    """A cache whose every sequence holds `prefix` tokens."""
    cache = SiblingCache(model.config.num_hidden_layers, batch, prefix + 1, slots, model.device)
    first = min(prefix, START)
    prefill(model, cache, [0], [[5 + 7 * i % 1000 for i in range(first)]], 0)
    assert cache.store is not None
    for start in range(first, prefix, first):
        places = slice(start, min(start + first, prefix))
        cache.store[:, :, 0, :, places] = cache.store[:, :, 0, :, : places.stop - places.start]
    cache.store[:, :, 1:] = cache.store[:, :, :1]
    return cache


@dataclass
class Point:
    """One x of one line. name: of the line; floor: seconds."""

    axis: str
    name: str
    x: int
    step: Step
    floor: float


def points(model: Any, axes: Sequence[str], limits: argparse.Namespace, machine: Machine) -> list[Point]:
    """Every point but those of the vocabulary, which need models of their own."""
    found = []

    def add(axis: str, name: str, x: int, cache: SiblingCache, prefix: int, candidates: int) -> None:
        floor = machine.floor(model, cache.batch, prefix, candidates)
        found.append(Point(axis, name, x, Step(model, cache, prefix, candidates), floor))

    if "prefix" in axes:
        prefixes = [p for p in PREFIXES if p <= limits.longest]
        cache = filled_cache(model, 1, prefixes[-1], 2)
        for c in (1, 2):
            for prefix in prefixes:
                # a captured step reads as much of the cache as there may be, so each length has a cache of its own
                own = cache if model.device.type == "cpu" else filled_cache(model, 1, prefix, 2)
                add("prefix", f"C = {c}", prefix, own, prefix, c)
    if "candidates" in axes:
        cache = filled_cache(model, 1, START, CANDIDATES[-1])
        for c in CANDIDATES:
            add("candidates", "batch 1", c, cache, START, c)
    if "batch" in axes:
        for batch in (b for b in BATCHES if b <= limits.widest):
            cache = filled_cache(model, batch, START, 2)
            for c in (1, 2):
                add("batch", f"C = {c}", batch, cache, START, c)
    return found


def vocabulary_points(shapes: str, dtype: str, device: str | None, machine: Machine) -> list[Point]:
    """Models of two layers, so that the vocabulary is what takes the time."""
    found = []
    for size in VOCABULARIES:
        model = random_model(shapes, dtype, device, vocab_size=size, num_hidden_layers=2)
        with caw_attention(model), FusedForwards(model, enabled=True):
            cache = filled_cache(model, 1, START, 1)
        found.append(
            Point(
                "vocabulary", "2 layers, C = 1", size, Step(model, cache, START, 1), machine.floor(model, 1, START, 1)
            )
        )
    return found


@torch.inference_mode()
def measure(found: Sequence[Point], rounds: int) -> list[dict[str, Any]]:
    """A row a point, after two steps each that do not count (three on a GPU: the third is captured)."""
    times: list[list[float]] = [[] for _ in found]
    order, shuffle = list(range(len(found))), random.Random(0)
    models = {id(point.step.model): point.step.model for point in found}
    ready = {key: (caw_attention(model), FusedForwards(model, enabled=True)) for key, model in models.items()}
    for number in range(rounds + 1):
        shuffle.shuffle(order)
        for i in order:
            step = found[i].step
            attention, linears = ready[id(step.model)]
            with attention, linears:
                step()  # brings the model's weights back to where the caches can hold them
                if number == 0:
                    step(), step()
                else:
                    times[i].append(step())
    return [
        {"axis": p.axis, "line": p.name, "x": p.x, "floor_ms": 1e3 * p.floor,
         "ms": Summary.of([1e3 * t for t in seconds]).as_dict()}
        for p, seconds in zip(found, times, strict=True)
    ]  # fmt: skip


def speeds(model: Any, rounds: int) -> Machine:
    """How fast this machine reads as many bytes as the model has, and multiplies matrices of its dtype."""
    device, dtype = model.device, model.dtype
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    buffer = torch.ones(max(size // 4, 1 << 20), device=device)
    side = 4096 if device.type == "cuda" else 1024
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))

    _, clock = clock_for(device, torch.get_num_threads())

    def seconds(call: Callable[[], Any]) -> float:
        found = []
        for _ in range(rounds + 8):
            start = clock()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            found.append(clock() - start)
        return min(found)

    read = seconds(buffer.sum)
    return Machine(buffer.numel() * 4 / read, 2 * side**3 / seconds(lambda: a @ b))


def slopes(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Least-squares lines through the medians and the floors of each line; milliseconds per unit of the axis."""
    found = []
    for axis, line in dict.fromkeys((row["axis"], row["line"]) for row in rows):
        own = [row for row in rows if (row["axis"], row["line"]) == (axis, line)]
        if len(own) < 2:
            continue
        unit, count = AXES[axis]
        x = np.array([row["x"] for row in own]) / count
        slope, start = np.polyfit(x, [row["ms"]["median"] for row in own], 1)
        floor_slope, _ = np.polyfit(x, [row["floor_ms"] for row in own], 1)
        found.append(
            {"axis": axis, "line": line, "per": unit, "ms": float(slope), "floor_ms": float(floor_slope),
             "at_zero_ms": float(start), "times_floor": float(slope / floor_slope)}
        )  # fmt: skip
    return found


def memory_rows(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Peak memory of generating, each mode in fresh processes in turns; medians, relative to plain's."""
    rows = []
    for batch, prompt in ((1, min(2048, arguments.longest)), (min(8, arguments.widest), 128)):
        peaks: dict[str, list[int]] = {mode: [] for mode in MEMORY_MODES}
        for _, mode in itertools.product(range(arguments.rounds), MEMORY_MODES):
            found = peak_memory.in_fresh_process(
                {"name": arguments.model, "shapes": arguments.shapes, "dtype": arguments.dtype,
                 "device": arguments.device, "evaluator": None, "threads": arguments.threads, "theta": 0.8,
                 "beta": 1.0, "mode": mode, "slots": None, "batch": batch, "prompt": prompt, "tokens": 24}
            )  # fmt: skip
            peaks[mode].append(found["peak"])
        plain = Summary.of(peaks["plain"]).median
        for mode, sizes in peaks.items():
            peak = Summary.of(sizes)
            row = {"mode": mode, "batch": batch, "prompt": prompt, "ratio": peak.median / plain}
            rows.append({**row, "peak_bytes": peak.median, "low": peak.low, "high": peak.high, "n": peak.n})
            middle, *spread = (f"{size / 2**20:.0f}" for size in (peak.median, peak.low, peak.high))
            print(f"| {mode} | {batch} | {prompt} | {middle} ({' - '.join(spread)}) | {row['ratio']:.4f} |", flush=True)
    return rows


def plot(rows: Sequence[dict[str, Any]], fits: Sequence[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    axes_found = list(dict.fromkeys(row["axis"] for row in rows))
    figure = Figure(figsize=(4.4 * len(axes_found), 4), layout="constrained")
    for place, axis in enumerate(axes_found):
        panel = figure.add_subplot(1, len(axes_found), place + 1)
        for number, line in enumerate(dict.fromkeys(row["line"] for row in rows if row["axis"] == axis)):
            own = [row for row in rows if (row["axis"], row["line"]) == (axis, line)]
            fit = next((f for f in fits if (f["axis"], f["line"]) == (axis, line)), None)
            label = line if fit is None else f"{line}: {fit['ms']:.3g} ms per {fit['per']}, floor {fit['floor_ms']:.3g}"
            x, color = [row["x"] for row in own], f"C{number}"
            panel.plot(x, [row["ms"]["median"] for row in own], marker="o", ms=4, color=color, label=label)
            low, high = ([row["ms"][which] for row in own] for which in ("low", "high"))
            panel.fill_between(x, low, high, alpha=0.2, color=color)
            panel.plot(x, [row["floor_ms"] for row in own], ls="--", color=color)
        panel.set(xlabel=axis, ylabel="ms a step (dashed: floor)", ylim=(0, None))
        panel.legend(fontsize=7)
    save_figure(figure, path)


def show(rows: Sequence[dict[str, Any]], fits: Sequence[dict[str, Any]]) -> None:
    print("| axis | line | x | ms a step | floor, ms | of the floor's speed |\n| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        ms, floor = row["ms"]["median"], row["floor_ms"]
        print(f"| {row['axis']} | {row['line']} | {row['x']} | {ms:.2f} | {floor:.2f} | {floor / ms:.0%} |")
    print("\n| axis | line | slope, ms | floor's slope, ms | per | ratio |\n| --- | --- | --- | --- | --- | --- |")
    for fit in fits:
        print(f"| {fit['axis']} | {fit['line']} | {fit['ms']:.3f} | {fit['floor_ms']:.3f} | {fit['per']} "
              f"| {fit['times_floor']:.1f} |")  # fmt: skip


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--shapes", choices=SHAPES, help="random weights of these shapes instead of --model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--axes", nargs="+", choices=[*AXES, "memory"], default=list(AXES))
    parser.add_argument("--longest", type=int, default=4096, help="longest prefix, tokens")
    parser.add_argument("--widest", type=int, default=64, help="largest batch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    return parser.parse_args()


def main() -> None:
    arguments = arguments_of()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    result: dict[str, Any] = {"arguments": {**vars(arguments), "out": None, "plot": None}}
    timed = [axis for axis in arguments.axes if axis != "memory"]
    if timed:
        model = load_subject(arguments.model, arguments.shapes, arguments.dtype, arguments.device, None).model
        machine = speeds(model, arguments.rounds)
        print(f"reads {machine.bandwidth / 1e9:.1f} GB/s, multiplies {machine.arithmetic / 1e9:.0f} Gflop/s\n")
        with torch.inference_mode(), caw_attention(model), FusedForwards(model, enabled=True):
            found = points(model, timed, arguments, machine)
        if "vocabulary" in timed:
            shapes = arguments.shapes or "smollm2-135m"
            with torch.inference_mode():
                found += vocabulary_points(shapes, arguments.dtype, arguments.device, machine)
        rows = measure(found, arguments.rounds)
        fits = slopes(rows)
        show(rows, fits)
        result |= {**about(model.device), "bandwidth": machine.bandwidth, "arithmetic": machine.arithmetic}
        result |= {"rows": rows, "slopes": fits}
        if arguments.plot:
            plot(rows, fits, arguments.plot)
    if "memory" in arguments.axes:
        print("\n| mode | batch | prompt | peak, MiB | over plain |\n| --- | --- | --- | --- | --- |")
        result = {**about(), **result, "memory": memory_rows(arguments)}
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
