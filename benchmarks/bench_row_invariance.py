"""What it costs that a row has the same bits beside any others: our products and attention against torch's fastest.

    python benchmarks/bench_row_invariance.py [--shapes smollm2-135m qwen2.5-0.5b] [--dtypes float32 bfloat16]
        [--rows 1 2 4 8 16 32 64] [--prompt 1000] [--rounds 7] [--out r.json]

A step of n rows is, for each layer, four products (queries, keys and values; output; gate and up; down) and attention
over a prefix of 500 tokens in each of n texts, and then the head; a prompt has attention among its tokens and no head.
Everything else of a step is the same on both sides and left out. Torch's side is, case by case, the faster of its
linear function and, where the processor has it, of oneDNN's with weights reordered for that number of rows; both change
their algorithm with it.
Attention there is scaled_dot_product_attention.

First each side is compared with the same in float64. Then they are timed on one thread, in turns; products walk over
so many copies of their matrices that none is still in a cache. Times are of the processor.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from caw import ops
from caw.benchmark.machine import about

PREFIX = 500
OURS = "caw"
ALLOWED = {torch.float32: 2e-5, torch.bfloat16: 2e-2}  # difference from float64, over the greatest number


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    dim: int
    inner: int
    vocabulary: int

    def matrices(self) -> dict[str, tuple[int, int]]:
        """[out, in] of a layer's products."""
        heads = self.heads * self.dim
        return {"qkv": (heads + 2 * self.kv_heads * self.dim, self.hidden), "output": (self.hidden, heads),
                "gate, up": (2 * self.inner, self.hidden), "down": (self.hidden, self.inner)}  # fmt: skip


SHAPES = {
    "smollm2-135m": Shape(30, 576, 9, 3, 64, 1536, 49_152),
    "qwen2.5-0.5b": Shape(24, 896, 14, 2, 64, 4864, 151_936),
    "tiny": Shape(2, 64, 4, 2, 16, 96, 300),
}
Sides = dict[str, Callable[[], torch.Tensor]]


def product_sides(shape: tuple[int, int], rows: int, dtype: torch.dtype, megabytes: int) -> tuple[Sides, Sides]:
    """(what is timed, one call of each for the comparison with "exact"); a timed call makes one product."""
    copies = max(1, min(16, megabytes * 2**20 // (shape[0] * shape[1] * dtype.itemsize)))
    weights = [torch.randn(shape).to(dtype) for _ in range(copies)]
    x = torch.randn(rows, shape[1]).to(dtype)
    made: dict[str, Callable[[int], torch.Tensor]] = {
        OURS: lambda n: ops.small_linear(x, weights[n], None),
        "linear": lambda n: linear(x, weights[n]),
    }
    if torch.backends.mkldnn.is_available() and (
        dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    ):
        packed = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in weights]
        made["reordered"] = lambda n: torch.ops.mkldnn._linear_pointwise(x, packed[n], None, "none", [], "")
    # each side reads other copies than the one before it has just read
    turns = {name: _forever(copies, number * copies // len(made)) for number, name in enumerate(made)}
    timed = {name: lambda call=call, turn=turns[name]: call(next(turn)) for name, call in made.items()}
    once = {name: lambda call=call: call(0) for name, call in made.items()}
    return timed, {**once, "exact": lambda: linear(x.double(), weights[0].double())}


def _forever(copies: int, start: int) -> Iterator[int]:
    return (number % copies for number in itertools.count(start))


def step_attention(shape: Shape, rows: int, dtype: torch.dtype) -> tuple[Sides, Sides]:
    """The row of each text after PREFIX tokens of its own."""
    q, k, v = (torch.randn(rows, heads, 1, shape.dim).to(dtype) for heads in _heads(shape))
    store = [torch.randn(rows, shape.kv_heads, PREFIX + 1, shape.dim).to(dtype) for _ in range(2)]
    for kept, own in zip(store, (k, v), strict=True):
        kept[:, :, -1:] = own
    at = torch.full((rows,), PREFIX), torch.arange(rows)
    timed: Sides = {
        OURS: lambda: ops.prefix_attention(q, *store, k, v, *at, shape.dim**-0.5, None, None, None),
        "sdpa": lambda: scaled_dot_product_attention(q, *store, enable_gqa=True),
    }
    return timed, {**timed, "exact": lambda: scaled_dot_product_attention(
        q.double(), *(kept.double() for kept in store), enable_gqa=True)}  # fmt: skip


def prompt_attention(shape: Shape, tokens: int, dtype: torch.dtype) -> tuple[Sides, Sides]:
    """Each token of a prompt over those before it."""
    q, k, v = (torch.randn(1, heads, tokens, shape.dim).to(dtype) for heads in _heads(shape))
    one = [part[0].transpose(0, 1)[:, :, None].contiguous() for part in (q, k, v)]
    at = torch.arange(tokens), torch.zeros(tokens, dtype=torch.int64)

    def ours() -> torch.Tensor:
        out = ops.prefix_attention(one[0], k, v, *one[1:], *at, shape.dim**-0.5, None, None, None)
        return out[:, :, 0].transpose(0, 1)[None]

    timed: Sides = {OURS: ours, "sdpa": lambda: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)}
    return timed, {**timed, "exact": lambda: scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=True, enable_gqa=True)}  # fmt: skip


def _heads(shape: Shape) -> tuple[int, int, int]:
    return shape.heads, shape.kv_heads, shape.kv_heads


def check(case: str, sides: Sides, dtype: torch.dtype) -> float:
    """The greatest difference of any side from float64, over the greatest number; an error beyond ALLOWED."""
    exact = sides["exact"]()
    worst = 0.0
    for name, call in sides.items():
        error = float((call().double() - exact).abs().max() / exact.abs().max())
        if not error <= ALLOWED[dtype]:
            raise ValueError(f"{name} must give the numbers of {case} within {ALLOWED[dtype]}, found {error:.2g} off")
        worst = max(worst, error)
    return worst


def measure(sides: Sides, rounds: int) -> dict[str, list[float]]:
    """Seconds of each side in each round, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for call in sides.values():
        call()
    for _ in range(rounds):
        for name, call in sides.items():
            start = time.thread_time()
            call()
            seconds[name].append(time.thread_time() - start)
    return seconds


def parts_of(shape: Shape, rows: int, prompt: bool, dtype: torch.dtype, megabytes: int) -> Iterator[Any]:
    """(name, how often in a step, (timed, compared)) of each part, one at a time: their matrices are large."""
    for name, matrix in shape.matrices().items():
        yield name, shape.layers, product_sides(matrix, rows, dtype, megabytes)
    attend = prompt_attention if prompt else step_attention
    yield "attention", shape.layers, attend(shape, rows, dtype)
    if not prompt:
        yield "head", 1, product_sides((shape.vocabulary, shape.hidden), rows, dtype, megabytes)


def row_of(shape: Shape, rows: int, prompt: bool, dtype: torch.dtype, args: argparse.Namespace) -> dict[str, Any]:
    """Ours over torch's: of the whole with quartiles over the rounds, and of each part."""
    ours, theirs, found = [0.0] * args.rounds, [0.0] * args.rounds, {}
    worst = 0.0
    for name, times, (timed, compared) in parts_of(shape, rows, prompt, dtype, args.megabytes):
        worst = max(worst, check(name, compared, dtype))
        seconds = measure(timed, args.rounds)
        best = min((side for side in seconds if side != OURS), key=lambda side: statistics.median(seconds[side]))
        found[name] = {"over": best, "ratio": ratio(seconds[OURS], seconds[best])["ratio"]}
        for number in range(args.rounds):
            ours[number] += times * seconds[OURS][number]
            theirs[number] += times * seconds[best][number]
    return {"rows": rows, "prompt": prompt, **ratio(ours, theirs), "ms": round(1e3 * statistics.median(ours), 2),
            "error": float(f"{worst:.1e}"), "parts": found}  # fmt: skip


def ratio(ours: list[float], theirs: list[float]) -> dict[str, float]:
    each = sorted(a / max(b, 1e-9) for a, b in zip(ours, theirs, strict=True))
    low, middle, high = statistics.quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
    return {"ratio": round(middle, 3), "low": round(low, 3), "high": round(high, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["smollm2-135m", "qwen2.5-0.5b"], choices=SHAPES)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--prompt", type=int, default=1000, help="tokens")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=100, help="of each matrix's copies")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = []
    print("| shapes | dtype | rows | ours over torch's (quartiles) | parts |\n| --- | --- | ---: | --- | --- |")
    with torch.inference_mode():
        for name, said in ((name, said) for name in args.shapes for said in args.dtypes):
            for rows, prompt in [*((rows, False) for rows in args.rows), (args.prompt, True)]:
                row = row_of(SHAPES[name], rows, prompt, getattr(torch, said), args)
                found.append({"shapes": name, "dtype": said, **row})
                parts = ", ".join(f"{part} {one['ratio']:.2f} ({one['over']})" for part, one in row["parts"].items())
                count = f"prompt of {rows}" if prompt else rows
                print(f"| {name} | {said} | {count} | {row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f}) | "
                      f"{parts} |", flush=True)  # fmt: skip
    if args.out is not None:
        given = {key: value for key, value in vars(args).items() if key != "out"}
        sizes = {name: asdict(SHAPES[name]) for name in args.shapes}
        args.out.write_text(json.dumps({"rows": found, "arguments": given, "shapes": sizes, **about()}) + "\n")


if __name__ == "__main__":
    main()
