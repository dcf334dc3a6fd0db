"""Captured steps alone: eight replays of a step's graph between two events, over a prefix that exists in length only.

    python benchmarks/bench_steps.py [--shapes llama-2-7b] [--batch 1 8] [--prompt 128 1024] [--json steps.json]

No text is read or generated, so long prefixes prepare as fast as short ones.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import step_times
from replays import impossible

from caw.benchmark.sizes import SHAPES
from caw.io.files import write_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", choices=SHAPES, default="llama-2-7b")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--quantization", help="fp8, int8 or int4")
    parser.add_argument("--modes", nargs="+", default=list(step_times.MODES))
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--prompt", type=int, nargs="+", default=[1024])
    parser.add_argument("--rounds", type=int, default=32, help="of eight steps each")
    parser.add_argument("--max-seconds", type=float, help="no further case begins after this time")
    parser.add_argument("--texts", action="store_true", help="with as many candidates as real texts have")
    parser.add_argument("--device")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    settings = step_times.StepSettings(
        asked.shapes, asked.dtype, asked.device, tuple(asked.modes), tuple(asked.batch), tuple(asked.prompt),
        asked.rounds, asked.max_seconds, asked.quantization, asked.texts,
    )  # fmt: skip
    print("| batch | prefix | mode | us a step | of plain | of bandwidth | memory |\n|" + " --- |" * 7)
    shown = 0

    def saved(results: dict[str, Any]) -> None:
        nonlocal shown
        for row in results["rows"][shown:]:
            print(f"| {row['batch']} | {row['prefix']} | {row['mode']} | {' | '.join(cells(row))} |", flush=True)
        shown = len(results["rows"])
        if asked.json is not None:
            write_text(asked.json, json.dumps(results, indent=1) + "\n")

    found = step_times.run(settings, saved=saved)
    if not found["complete"]:
        print(f"remaining cases skipped after {asked.max_seconds:.0f} seconds")
    if found["clock"] == "events":
        sys.exit(impossible(found["rows"]) or None)


def cells(row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [row["error"], "", "", ""]
    ratio, share, memory = row["ratio"], row["share_of_bandwidth"], row["memory_ratio"]
    return [
        f"{row['step_us']['median']:.1f}",
        f"{ratio['median']:.4f} ({ratio['low']:.3f}-{ratio['high']:.3f})" if ratio else "",
        f"{share:.0%}" if share is not None else "",
        f"{memory:.4f}" if memory is not None else "",
    ]


if __name__ == "__main__":
    main()
