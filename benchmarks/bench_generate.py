"""The runs of `caw benchmark` behind the results: one file each.

    python benchmarks/bench_generate.py cpu [--only NAME ...] [--rounds N] [--out FOLDER]
    python benchmarks/bench_generate.py gpu            (hours: all shapes, batches and prompts of the paper's figure)
    python benchmarks/bench_generate.py gpu --only llama-2-7b_quick

How it is measured: `caw benchmark --help` and caw/benchmark. A run writes FOLDER/generate_NAME.json.
"""

import argparse
import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from caw.benchmark.cases import BenchmarkSettings, run
from caw.cli.benchmark_command import show

FEW = ("kgw", "kgw+entropy", "kgw+caw", "kgw+caw/sequential", "kgw+caw/batch", "unigram+caw", "exp", "exp+caw",
       "transformers", "transformers-kgw", "as-transformers-kgw")  # fmt: skip
LOOK_AHEAD = ("kgw+caw", "exp+caw")
DRAWN = ("synthid", "synthid+caw", "plain/drawn", "kgw/drawn", "kgw+caw/drawn", "exp/drawn", "synthid/drawn")
CPU = BenchmarkSettings(device="cpu", threads=1, tokens=32, rounds=10)
GPU = BenchmarkSettings(
    dtype="float16", tokens=200, rounds=10, batches=(1, 4, 8, 32), prompts=(128, 1024, 4096),
    modes=("default", "transformers-static"),
)  # fmt: skip
SETS: dict[str, dict[str, BenchmarkSettings]] = {
    "cpu": {
        "cpu_float32": replace(CPU, dtype="float32", modes=FEW, max_seconds=200),
        "cpu_float32_b8": replace(
            CPU, dtype="float32", modes=(*LOOK_AHEAD, "transformers"), batches=(8,), prompts=(32,), rounds=4
        ),
        "cpu_branching_b8": replace(
            CPU, dtype="float32", modes=("kgw+caw", "kgw+caw/sequential", "kgw+caw/batch"), batches=(8,),
            prompts=(128,), max_seconds=300,
        ),
        "cpu_bfloat16": replace(
            CPU, dtype="bfloat16", modes=(*LOOK_AHEAD, "transformers"), batches=(1, 8), prompts=(32,), rounds=4
        ),
        "cpu_drawn": replace(
            CPU, dtype="float32", modes=(*LOOK_AHEAD, *DRAWN), batches=(1, 8, 16), prompts=(32,), rounds=4
        ),
        "cpu_long": replace(
            CPU, dtype="float32", modes=("kgw+caw", "kgw+caw/sequential", "exp+caw", "transformers"), batches=(1, 8),
            prompts=(128,), tokens=200, threads=2, rounds=5,
        ),
    },
    "gpu": {
        **{name: replace(GPU, shapes=name) for name in ("llama-2-7b", "llama-2-13b", "llama-3-8b", "qwen2.5-1.5b")},
        "llama-2-7b_quick": replace(
            GPU, shapes="llama-2-7b", modes=LOOK_AHEAD, batches=(1, 8, 32), prompts=(1024,), tokens=96, rounds=5,
        ),
    },
    "smoke": {
        "smoke": BenchmarkSettings(
            shapes="tiny", dtype="float32", device="cpu", threads=1, tokens=3, rounds=2, prompts=(9,),
            modes=("kgw+caw", "transformers"),
        )
    },
}  # fmt: skip


def measure(name: str, settings: BenchmarkSettings, folder: Path | None) -> dict[str, Any]:
    found = run(settings)
    if folder is not None:
        path = folder / f"generate_{name}.json"
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--only", nargs="+", help="names of runs")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    runs = SETS[arguments.set]
    if unknown := set(arguments.only or []) - set(runs):
        parser.error(f"expected runs among {', '.join(runs)}, got {', '.join(sorted(unknown))}")
    warnings.simplefilter("ignore")  # of other libraries; what spoils a figure is said
    warnings.filterwarnings("always", module=r"caw\.benchmark")
    for name, settings in runs.items():
        if arguments.only is not None and name not in arguments.only:
            continue
        if arguments.rounds is not None:
            settings = replace(settings, rounds=arguments.rounds)
        print(f"\n{name}", flush=True)
        show(measure(name, settings, arguments.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
