"""What one captured step launches on a GPU, without having one: each kernel, how often, and its least time.

    python benchmarks/bench_step_model.py h200 [--shapes llama-2-7b] [--batch 1 8] [--prompt 1024] [--json step.json]

The least time of a launch is its bytes over the data sheet's bandwidth, or an assumed launch cost where that is more.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import step_model

from caw.benchmark.sizes import SHAPES
from caw.io.files import write_text

WIDEST = 32  # characters of a kernel's name: torch's templates fill lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gpu", choices=step_model.DEVICES)
    parser.add_argument("--shapes", choices=SHAPES, default="llama-2-7b")
    parser.add_argument("--modes", nargs="+", default=["plain", "kgw+caw", "exp+caw"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--prompt", type=int, nargs="+", default=[1024])
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--quantization", help="fp8, int8 or int4")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    results = step_model.run(
        asked.gpu, asked.modes, asked.shapes, asked.dtype, asked.batch, asked.prompt, asked.quantization
    )
    for batch, prefix in dict.fromkeys((row["batch"], row["prefix"]) for row in results["rows"]):
        show([row for row in results["rows"] if (row["batch"], row["prefix"]) == (batch, prefix)], results)
    if asked.json is not None:
        write_text(asked.json, json.dumps(results, indent=1) + "\n")


def show(rows: Sequence[dict[str, Any]], results: dict[str, Any]) -> None:
    """Print one case: a line per kernel, the columns of each mode, and the totals."""
    arguments, device = results["arguments"], results["device"]
    kind = " ".join(filter(None, (arguments["weights"], arguments["dtype"])))
    print(
        f"{arguments['shapes']}, {kind}, batch {rows[0]['batch']}, {rows[0]['prefix']} tokens before, {device['name']}"
    )
    print(_header(rows))
    for name in dict.fromkeys(name for row in rows for name in row["kernels"]):
        print(f"| {name[:WIDEST]} | {' | '.join(cell for row in rows for cell in _cells(row, name))} |")
    for row in rows:
        print(
            f"{row['mode']}: {row['launches']} launches, {row['bytes'] / 1e9:.3f} GB, which take {row['floor_us']:.0f} "
            f"us at {device['bandwidth'] / 1e12:.2f} TB/s; at least {row['step_us']:.0f} us with "
            f"{arguments['launch_us']} us a launch"
        )


def _header(rows: Sequence[dict[str, Any]]) -> str:
    names = ["kernel", *(name for row in rows for name in (row["mode"], "us"))]
    return f"| {' | '.join(names)} |\n|{' --- |' * len(names)}"


def _cells(row: dict[str, Any], name: str) -> list[str]:
    kernel = row["kernels"].get(name)
    return ["", ""] if kernel is None else [str(kernel["count"]), f"{kernel['us']:.1f}"]


if __name__ == "__main__":
    main()
