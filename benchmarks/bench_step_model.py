"""What one captured step launches on a GPU, without having one: each kernel, how often, and its time by a model.

    python benchmarks/bench_step_model.py h200 [--shapes llama-2-7b] [--batch 1 8] [--prompt 1024]
    python benchmarks/bench_step_model.py h100 --beside gpu_h100.json.xz --json step_model.json [--count NAME]

The model is step_model.py's: bytes, instructions and shared memory of each launch over the rates of one H100. Products
are compiled for the counts of their loops, seconds each. --beside: the greedy steps that a result file has untuned,
each by the products of every library that the --json file has counted; --count adds those of this one under a name,
before the others' steps are worked out anew.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aot
from step_model import DEVICES, LAUNCH_US, Device, Launch, model_of_step

from caw.benchmark.modes import OWN
from caw.benchmark.sizes import SHAPES
from caw.io.files import write_text
from caw_lab.evaluation.packed_files import opened

Counts = dict[str, Sequence[int]]  # of a product: instructions of warps, bytes through shared memory
PARTS = ("steps_b1", "steps_batches", "steps_fp8", "steps_int4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gpu", choices=DEVICES)
    parser.add_argument("--shapes", choices=SHAPES, default="llama-2-7b")
    parser.add_argument("--modes", nargs="+", default=["plain", "kgw+caw", "exp+caw"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--prompt", type=int, nargs="+", default=[1024])
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--quantization", help="fp8, int8 or int4")
    parser.add_argument("--drawn", action="store_true", help="steps that draw their tokens")
    parser.add_argument("--beside", type=Path, help="measured steps of this GPU")
    parser.add_argument("--count", help="name of this library among those counted")
    parser.add_argument("--json", type=Path, help="counts and steps of --beside")
    asked = parser.parse_args()
    device = DEVICES[asked.gpu]
    if asked.beside is not None:
        with opened(asked.beside) as file:
            measured = json.load(file)["parts"]
        counted = json.loads(asked.json.read_text())["counts"] if asked.json.exists() else {}
        found = beside(measured, device, counted, asked.count)
        command = f"python benchmarks/bench_step_model.py {' '.join(sys.argv[1:])}"
        write_text(asked.json, json.dumps({"command": command, "gpu": asked.gpu, **found}, indent=1) + "\n")
        return
    counts: Counts = {}
    for batch in asked.batch:
        for prefix in asked.prompt:
            print(f"{asked.shapes}, {asked.quantization or ''} {asked.dtype}, batch {batch}, {prefix} tokens before")
            case = asked.shapes, asked.dtype, batch, prefix
            steps = {mode: model_of_step(mode, *case, asked.quantization, asked.drawn) for mode in asked.modes}
            show(steps, device, counts)


def key_of(launch: Launch) -> str:
    """Names a product by its shape, format and rows, in steps of what a program takes."""
    about, rows = launch.asked.arguments, launch.asked.arguments["rows"]
    outputs = "+".join(str(about[f"outputs{i}"]) for i in range(about["PARTS"]))
    kind = f"{str(about['x_ptr'].dtype).removeprefix('torch.')}, format {about['FORMAT']}"
    return f"{outputs} x {about['K']} {kind}, {next(most for most in (16, 32, 64) if rows <= most)} rows"


def microseconds(launch: Launch, device: Device, counts: Counts) -> float:
    """By the model; counts: of products, those compiled here are added."""
    if launch.asked is None:
        return LAUNCH_US + 1e6 * device.seconds(launch.bytes)
    if (key := key_of(launch)) not in counts:
        counts[key] = aot.loop_work(launch.asked, device.capability)
    return LAUNCH_US + 1e6 * device.seconds(launch.bytes, *counts[key])


def show(steps: dict[str, list[Launch]], device: Device, counts: Counts) -> None:
    """Print one case: a line per kernel, its launches and time in each mode, and the totals."""
    times = {mode: [(one.name, microseconds(one, device, counts)) for one in step] for mode, step in steps.items()}
    print(f"| kernel | {' | '.join(f'{mode} | us' for mode in steps)} |\n|{' --- |' * (1 + 2 * len(steps))}")
    for name in dict.fromkeys(one.name for step in steps.values() for one in step):
        of_it = [[us for other, us in found if other == name] for found in times.values()]
        print(f"| {name} | {' | '.join(f'{len(us)} | {sum(us):.1f}' if us else ' | ' for us in of_it)} |")
    for mode, step in steps.items():
        moved, us = sum(one.bytes for one in step), sum(us for _, us in times[mode])
        least = f"{1e6 * device.seconds(moved):.0f} us"
        print(f"{mode}: {len(step)} launches, {moved / 1e9:.3f} GB, read in {least}; by the model {us:.0f} us")


def beside(parts: dict[str, Any], device: Device, counted: dict[str, Counts], count: str | None) -> dict[str, Any]:
    """counts: by library and product; `count` names this library. rows: a measured part, and model_us by library."""
    rows, counted = [], counted | ({} if count is None else {count: {}})
    for name in PARTS:
        about = parts[name]["arguments"]
        for row in parts[name]["rows"]:
            if row["mode"] not in OWN:
                continue
            case = {key: row[key] for key in ("mode", "batch", "prefix")}
            step = model_of_step(**case, shapes=about["shapes"], dtype=about["dtype"], weights=about["weights"])
            model = {
                library: round(sum(microseconds(one, device, counts) for one in step), 1)
                for library, counts in counted.items()
            }
            measured = row["step_us"]["median"]
            rows.append({"part": name, "weights": about["weights"], **case, "measured_us": measured, "model_us": model})
            print(name, *case.values(), measured, *model.values(), flush=True)
    return {"counts": counted, "rows": rows}


if __name__ == "__main__":
    main()
