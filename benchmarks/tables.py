"""Write the measured tables of README.md from results/*.json, between their markers.

    python benchmarks/tables.py [--check]

A table stands between `<!-- NAME -->` and `<!-- end -->`. With --check nothing is written; exit code 1 if the README is
not what the results say.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench_stages import table as stages_table

from caw.benchmark.cases import Variant

FOLDER = Path(__file__).resolve().parent
NONE = "Not measured yet."


def generate(results: Path) -> str:
    """A row per mode and case of every generate_*.json of `caw benchmark`."""
    lines = ["| run | mode | ms per token | time over plain (quartiles) | first token over plain | memory over plain |",
             "| --- | --- | ---: | --- | ---: | ---: |"]  # fmt: skip
    for _, found in read(results, "generate_*.json"):
        for row in found["rows"] if found.get("kind") == "caw benchmark" else []:
            name, arguments = Variant(row["mode"], row["slots"]).name, found["arguments"]
            subject = f"{arguments['shapes'] or arguments['model']}, {arguments['dtype']}"
            case = f"{subject}, batch {row['batch']}, prompt {row['prompt']}"
            if "error" in row:
                lines.append(f"| {case} | {name} | not supported | | | |")
                continue
            ratio, memory = row["ratio"], f"{row['peak_ratio']:.3f}" if "peak_ratio" in row else ""
            case += f", {row['tokens']} new tokens, {ratio['n']} rounds"
            lines.append(
                f"| {case} | {name} | {row['ms_per_token']['median']:.1f} | {ratio['median']:.2f} "
                f"({ratio['low']:.2f} - {ratio['high']:.2f}) | {row['first_ratio']['median']:.2f} | {memory} |"
            )
    return "\n".join(lines) if len(lines) > 2 else NONE


def stages(results: Path) -> str:
    """Milliseconds per step by stage, a table for each dtype and batch."""
    parts = []
    for _, found in read(results, "stages*.json"):
        for dtype, batch in dict.fromkeys((row["dtype"], row["batch"]) for row in found["rows"]):
            own = {r["mode"]: r for r in found["rows"] if (r["dtype"], r["batch"]) == (dtype, batch)}
            about = found["arguments"]
            case = f"{dtype}, batch {batch}, prompt {about['prompt']}, {about['tokens']} new tokens"
            parts.append(f"Milliseconds per step, {case}, {about['rounds']} rounds:\n\n{stages_table(own)}")
    return "\n\n".join(parts) or NONE


def scaling(results: Path) -> str:
    """Fitted slopes beside those of the floor, and peak memory."""
    slopes = ["| axis | line | ms per | measured | floor | ratio |", "| --- | --- | --- | ---: | ---: | ---: |"]
    memory = [
        "| mode | batch | prompt | peak memory, MiB (quartiles) | memory over plain |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for _, found in read(results, "scaling*.json"):
        for fit in found.get("slopes", ()):
            slopes.append(
                f"| {fit['axis']} | {fit['line']} | {fit['per']} | {fit['ms']:.3f} | {fit['floor_ms']:.3f} "
                f"| {fit['times_floor']:.1f} |"
            )
        for row in found.get("memory", ()):
            size = "{:.0f} ({:.0f} - {:.0f})".format(*(row[k] / 2**20 for k in ("peak_bytes", "low", "high")))
            memory.append(f"| {row['mode']} | {row['batch']} | {row['prompt']} | {size} | {row['ratio']:.3f} |")
    return "\n\n".join("\n".join(lines) for lines in (slopes, memory) if len(lines) > 2) or NONE


def machine(results: Path) -> str:
    """What each file was measured on."""
    lines = ["| file | machine | threads | torch | transformers | commit |", "| --- | --- | --- | --- | --- | --- |"]
    for name, found in read(results, "*.json"):
        if not isinstance(found, dict) or "commit" not in found:
            continue
        about, versions = found["machine"], found["versions"]
        place = about.get("gpu") or f"{about['cpu']}, {about['cores']} cores"
        lines.append(
            f"| `{name}` | {place} | {about['threads']} | {versions['torch']} | {versions['transformers']} "
            f"| {found['commit']} |"
        )
    return "\n".join(lines) if len(lines) > 2 else NONE


TABLES: dict[str, Callable[[Path], str]] = {
    "generate": generate, "stages": stages, "scaling": scaling, "machine": machine,
}  # fmt: skip


def read(results: Path, pattern: str) -> list[tuple[str, Any]]:
    return [(path.name, json.loads(path.read_text())) for path in sorted(results.glob(pattern))]


def filled(text: str, results: Path) -> str:
    """The text with every table anew; ValueError for a marker without its end."""
    for name, make in TABLES.items():
        table = f"<!-- {name} -->\n{make(results)}\n<!-- end -->"
        parts = re.split(rf"<!-- {name} -->\n.*?<!-- end -->", text, flags=re.DOTALL)
        if len(parts) != 2:
            raise ValueError(f"expected one table {name!r} with its end, found {len(parts) - 1}; put the markers in")
        text = table.join(parts)
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    path = FOLDER / "README.md"
    before = path.read_text(encoding="utf-8")
    after = filled(before, FOLDER / "results")
    if options.check:
        print("up to date" if before == after else "README.md is not what results say; run python benchmarks/tables.py")
        return int(before != after)
    path.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
