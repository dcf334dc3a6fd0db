"""Products of a few rows with a model's matrices: this library's, torch's own of 4 and 8 bits, oneDNN's, ggml's.

    python benchmarks/bench_products.py [--models smollm2-135m ...] [--rows 1 2 4 8 16] [--cases attention up down head]
        [--rounds 7] [--megabytes 160] [--clock cpu] [--out r.json]

The matrices are those of one layer of a .gguf file, of each mixture of types that its layers have, and its head.
"blocks" and "blocks, fast" read the file's own, as quantization="file" and "file-fast" do; "float32" and "bfloat16" are
what those dtypes read. torch rounds the same matrices its own way: to groups of 32 with a scale (4 bits), to rows with
a scale (8 bits), to bfloat16. ggml (the package xllamacpp) multiplies the file's blocks, in the file's order and, where
it knows one, in its own.

First every side's result is compared in float64 with the rows as it gets them times the numbers that its weights stand
for, over the sum of the products' sizes; a side beyond what its inputs' rounding allows ends the run. Then they are
timed, one thread, in turns, each walking over so many copies of its matrices that none is still in a cache.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from ggml_products import Products, library

import caw
from caw import ops
from caw.models.gguf_file import GGUFFile, TensorInfo
from caw.models.sources import file_or_folder
from caw.ops_ref.block_types import BLOCK_TYPES

GROUP = 32
CASES = {
    "attention": ("attn_q", "attn_k", "attn_v", "attn_output"),
    "up": ("ffn_gate", "ffn_up"),
    "down": ("ffn_down",),
    "head": ("head",),
}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
# of the sum of the products' sizes: what float32 adds up, what bfloat16 rounds a result to, inputs of 8 bits
SUMS, HALF, EIGHT = 2e-6, 2.0**-8, 1e-2


@dataclass
class Matrix:
    """A matrix of a file: its blocks, uint8 [outputs, bytes of a row], and its numbers, float32."""

    kind: int
    blocks: np.ndarray
    numbers: torch.Tensor


@dataclass
class Made:
    """One matrix as a side reads it: product(rows, *tensors), the numbers it stands for, the dtype of the rows."""

    product: Callable[..., torch.Tensor]
    tensors: tuple[torch.Tensor, ...]
    numbers: torch.Tensor
    dtype: torch.dtype = torch.bfloat16


def own_blocks(matrix: Matrix, fast: bool) -> Made:
    packed, outputs = ops.pack_blocks(torch.from_numpy(matrix.blocks.copy()), matrix.kind, fast), len(matrix.blocks)
    return Made(lambda x, p: ops.quantized_linear(x, p, outputs), (packed,), matrix.numbers, torch.float32)


def torch_int4(matrix: Matrix) -> Made:
    """Groups of 32 with a scale and a least number, as torch's CPU kernel reads them."""
    outputs, inputs = matrix.numbers.shape
    groups = matrix.numbers.unflatten(1, (-1, GROUP))
    least, most = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = ((most - least) / 15).clamp(min=1e-9).bfloat16().float()
    zero = (least + 8 * scale).bfloat16().float()
    quants = ((groups - zero) / scale + 8).round().clamp(0, 15)
    numbers = ((quants - 8) * scale + zero).flatten(1)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(quants.flatten(1).int(), 1)
    both = torch.cat([scale, zero], -1).transpose(0, 1).contiguous().bfloat16()
    product = torch.ops.aten._weight_int4pack_mm_for_cpu
    return Made(lambda x, p, s: product(x, p, GROUP, s), (packed, both), numbers.view(outputs, inputs))


def torch_int8(matrix: Matrix) -> Made:
    """Rows with a scale."""
    scale = (matrix.numbers.abs().amax(1) / 127).bfloat16()
    quants = (matrix.numbers / scale.float()[:, None]).round().clamp(-128, 127).to(torch.int8)
    numbers = quants.float() * scale.float()[:, None]
    return Made(torch.ops.aten._weight_int8pack_mm, (quants, scale), numbers)


def dense(matrix: Matrix, product: Callable[..., torch.Tensor]) -> Made:
    half = matrix.numbers.bfloat16()
    return Made(product, (half,), half.float())


def wide(matrix: Matrix) -> Made:
    return Made(ops.small_linear, (matrix.numbers,), matrix.numbers, torch.float32)


# name -> (how it reads a matrix, the error that it may have)
SIDES: dict[str, tuple[Callable[[Matrix], Made], float]] = {
    "blocks": (lambda m: own_blocks(m, False), SUMS),
    "blocks, fast": (lambda m: own_blocks(m, True), EIGHT),
    "float32": (wide, SUMS),
    "bfloat16": (lambda m: dense(m, ops.small_linear), HALF),
    "torch int4": (torch_int4, HALF),
    "torch int8": (torch_int8, HALF),
    "torch bfloat16": (lambda m: dense(m, torch.nn.functional.linear), HALF),
}


@dataclass
class Runner:
    """A side with the matrices of a case. bytes: of them, once. call: all copies once. error: see the module."""

    bytes: int
    copies: int
    call: Callable[[], Any]
    error: float
    close: Callable[[], Any] = lambda: None


def read(name: str) -> Iterator[tuple[str, list[Matrix]]]:
    """(case, its matrices): of the first layer of each mixture of types, and of the head."""
    file = GGUFFile(file_or_folder(name))
    for case, parts in CASES.items():
        seen = set()
        for layer in range(file.settings[f"{file.architecture}.block_count"] if case != "head" else 1):
            infos = [file.tensors[f"blk.{layer}.{part}.weight"] for part in parts] if case != "head" else [
                file.tensors.get("output.weight", file.tensors["token_embd.weight"])]  # fmt: skip
            kinds = tuple(info.kind for info in infos)
            if kinds not in seen:
                seen.add(kinds)
                yield case, [matrix_of(file, info) for info in infos]


def matrix_of(file: GGUFFile, info: TensorInfo) -> Matrix:
    blocks = file.array(info)
    numbers = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(info.kind))
    return Matrix(info.kind, blocks, torch.from_numpy(np.asarray(numbers, np.float32)))


def error_of(made: torch.Tensor, rows: torch.Tensor, numbers: torch.Tensor) -> float:
    """The greatest error over the sum of the products' sizes; vast vocabularies by a part of their rows."""
    part = slice(0, 8192)
    wide, rows = numbers[part].double(), rows.double()
    sizes = rows.abs() @ wide.abs().T
    return float(((made[:, part].double() - rows @ wide.T).abs() / sizes).max())


def torch_runner(name: str, matrices: list[Matrix], rows: list[torch.Tensor], megabytes: float) -> Runner:
    make, _ = SIDES[name]
    made = [make(matrix) for matrix in matrices]
    given = [x.to(one.dtype) for x, one in zip(rows, made, strict=True)]
    error = max(error_of(one.product(x, *one.tensors), x, one.numbers) for x, one in zip(given, made, strict=True))
    size = sum(t.numel() * t.element_size() for one in made for t in one.tensors)
    copies = max(1, round(megabytes * 1e6 / size))
    calls = [
        (one.product, x, tuple(t.clone() for t in one.tensors)) for _ in range(copies)
        for x, one in zip(given, made, strict=True)
    ]  # fmt: skip

    def call() -> None:
        for product, x, tensors in calls:
            product(x, *tensors)

    return Runner(size, copies, call, error)


def ggml_runner(ggml: Any, repacked: bool, matrices: list[Matrix], rows: list[torch.Tensor], mb: float) -> Runner:
    size = sum(matrix.blocks.nbytes for matrix in matrices)
    copies = max(1, round(mb * 1e6 / size))
    given = [(matrix.kind, matrix.blocks, matrix.numbers.shape[1]) for matrix in matrices]
    products = Products(ggml, given, copies, len(rows[0]), repacked)
    products.set([x.numpy() for x in rows])
    products()
    made = [torch.from_numpy(one) for one in products.results()]
    error = max(error_of(y, x, m.numbers) for y, x, m in zip(made, rows, matrices, strict=True))
    return Runner(size, copies, products, error, products.close)


def runners(matrices: list[Matrix], count: int, megabytes: float) -> Iterator[tuple[str, Runner]]:
    """Every side, checked."""
    generator = torch.Generator().manual_seed(count)
    by_inputs = {m.numbers.shape[1]: torch.randn(count, m.numbers.shape[1], generator=generator) for m in matrices}
    rows = [by_inputs[m.numbers.shape[1]] for m in matrices]
    ggml = library()
    makers: dict[str, tuple[Callable[[], Runner], float]] = {
        name: (lambda name=name: torch_runner(name, matrices, rows, megabytes), limit)  # type: ignore[misc]
        for name, (_, limit) in SIDES.items()
    }
    if ggml is not None:
        for name, order in (("ggml", False), ("ggml, its own order", True)):
            makers[name] = (lambda order=order: ggml_runner(ggml, order, matrices, rows, megabytes)), EIGHT  # type: ignore[misc]
    for name, (make, limit) in makers.items():
        try:
            found = make()
        except LookupError:
            continue  # ggml has no order of its own for these types
        if not found.error <= limit:
            raise RuntimeError(f"expected an error of at most {limit:g} from {name}, got {found.error:g}")
        yield name, found


def measure(sides: dict[str, Runner], rounds: int, clock: str) -> dict[str, list[float]]:
    """Seconds of one pass over a side's matrices, in each round."""
    now = CLOCKS[clock]
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            start = now()
            side.call()
            if number:  # the first round warms up
                times[name].append((now() - start) / side.copies)
    return times


def copying(megabytes: float, rounds: int, clock: str) -> float:
    """Bytes a second that one thread copies, of as many as a side reads."""
    source = torch.ones(round(megabytes * 1e6) // 4)
    target, taken = torch.zeros_like(source), []
    for _ in range(rounds + 1):
        start = CLOCKS[clock]()
        target.copy_(source)
        taken.append(CLOCKS[clock]() - start)
    return source.numel() * 4 / statistics.median(taken[1:])


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["smollm2-135m"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=float, default=160.0)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--out")
    return parser.parse_args()


def measure_case(name: str, case: str, matrices: list[Matrix], arguments: argparse.Namespace) -> dict[str, Any]:
    """What is kept of a case: of each side its bytes and greatest error, and quartiles in microseconds by rows."""
    types = sorted({BLOCK_TYPES[matrix.kind].name for matrix in matrices})
    found: dict[str, Any] = {
        "model": Path(name).name, "case": case, "types": types, "bytes": {}, "error": {}, "us": {}
    }  # fmt: skip
    for count in arguments.rows:
        sides = dict(runners(matrices, count, arguments.megabytes))
        times = measure(sides, arguments.rounds, arguments.clock)
        found["us"][str(count)] = us = {}
        for side, taken in times.items():
            runner = sides[side]
            us[side] = low, middle, high = [
                float(f"{t * 1e6:.4g}") for t in statistics.quantiles(taken, method="inclusive")
            ]
            found["bytes"][side] = runner.bytes
            found["error"][side] = max(float(f"{runner.error:.2g}"), found["error"].get(side, 0.0))
            about = (
                f"{found['model']} | {case} | {', '.join(types)} | {count} | {side} | {middle:g} | {low:g} - {high:g}"
            )
            print(f"| {about} | {runner.bytes / middle / 1e3:.1f} | {runner.error:.1e} |", flush=True)
            runner.close()
    return found


def main() -> None:
    arguments = read_arguments()
    torch.set_num_threads(1)
    bandwidth = copying(arguments.megabytes, arguments.rounds, arguments.clock)
    print(f"one thread copies {bandwidth / 1e9:.1f} GB/s")
    print("| model | case | types | rows | side | us | quartiles | GB/s | error |")
    print("| --- | --- | --- | ---: | --- | ---: | --- | ---: | ---: |")
    rows = [
        measure_case(name, case, matrices, arguments)
        for name in arguments.models for case, matrices in read(name) if case in arguments.cases
    ]  # fmt: skip
    if arguments.out:
        versions = {"caw": caw.__version__, "torch": torch.__version__, "xllamacpp": version("xllamacpp")}
        report = {
            "arguments": {k: v for k, v in vars(arguments).items() if k != "out"},
            "versions": versions,
            "copy": round(bandwidth),
            "rows": rows,
        }
        Path(arguments.out).write_text(json.dumps(report, separators=(",", ":")) + "\n")


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
