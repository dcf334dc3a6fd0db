"""Tables of what comes before the first token: loading (`bench_loading.py`), long prompts (`bench_quantization.py`)."""

from __future__ import annotations

from typing import Any

from result_files import INSTRUCTIONS, as_table, middle, read_result, source

from caw.benchmark.machine import best_instructions

SIDES = {"plain": "blocks", "kgw+caw": "blocks, KGW under CAW", "bfloat16 kgw+caw": "bfloat16, KGW under CAW"}


def loading() -> str:
    """Processor time of loading a model until its first token, and the memory that it takes."""
    found = read_result("loading.json")
    lines, imports, more = [], [], []
    counts = " or ".join(map(str, sorted({len(row["rounds"]) for run in found["runs"] for row in run["rows"]})))
    for run in found["runs"]:
        for row in run["rows"]:
            rounds, size, first = row["rounds"], row["rounds"][0]["bytes"], row["first_start"]
            lines.append((
                row["model"].split(".Q")[0], _processor(run), run["arguments"]["weights"], f"{size / 1e6:.0f}",
                f"{first['first_token'][1]:.1f}" if first else "", f"{_time(rounds, 'load'):.2f}",
                f"{_time(rounds, 'first_token'):.2f}", f"{middle([r['own'] for r in rounds]) / size:.2f}",
            ))  # fmt: skip
            imports += [r["imports"][1] for r in rounds]
            if first:
                more.append(f"{first['first_token'][1] - _time(rounds, 'first_token'):.1f} s")
    header = ("model", "processor", "`weights`", "MB", "first start, to the first token, s", "`load_model`, s",
              "to the first token, s", "own memory, of the size")  # fmt: skip
    commands = "\n".join(run["command"] for run in found["runs"])
    said = (
        f"Processor time with one thread; medians of {counts} processes, except the first start, which is one. "
        f"Those on AMX ran on a {found['machine']}. Importing PyTorch and transformers before it takes "
        f"{middle(imports):.1f} s. "
        f"The extra time of a first start ({' and '.join(more)}) goes into settings and tokenizer."
    )
    return f"{as_table(header, lines)}\n\n{said} {source('loading.json')} Its commands:\n\n```bash\n{commands}\n```"


def _processor(run: dict[str, Any]) -> str:
    """AMX: of the runs from before each said its own."""
    own = best_instructions(run["machine"]["cpu"]) if "machine" in run else "amx_bf16"
    return INSTRUCTIONS.get(own, own)


def prefill() -> str:
    """Seconds to the first token of a long prompt."""
    found = read_result("prefill.json")
    rows = [
        (SIDES.get(row["side"], row["side"]), f"{middle(row['seconds']):.2f}",
         f"{min(row['seconds']):.2f} - {max(row['seconds']):.2f}", f"{middle(row['ratios']):.2f}")
        for row in found["rows"]
    ]  # fmt: skip
    header = ("side", "s to the first token", "minimum and maximum", "speed relative to llama.cpp")
    said = (
        f"A prompt of {found['arguments']['prefix']:,} tokens; processor time with one thread on a {found['machine']}."
    )
    return f"{as_table(header, rows)}\n\n{said} {source('prefill.json')}"


def _time(rounds: list[dict[str, Any]], name: str) -> float:
    """The middle of the processor's times."""
    return middle([found[name][1] for found in rounds])
