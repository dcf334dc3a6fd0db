"""Tables of steps from a .gguf file's own blocks (`bench_quantization.py`)."""

from __future__ import annotations

from typing import Any

from result_files import as_table, middle, per_cent, read_result, source

from caw.benchmark.machine import best_instructions

SIDES = {
    "plain": "this library", "kgw+caw": "with KGW under CAW", "fast": "fast products",
    "fast kgw+caw": "fast products with KGW under CAW", "bfloat16 kgw+caw": "bfloat16 with KGW under CAW",
    "bfloat16 transformers": "bfloat16, transformers",
}  # fmt: skip
MODELS = {
    "smollm2-135m": "SmolLM2-135M, Q4_1", "qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf": "Qwen2.5-Coder-0.5B, Q4_K_M",
    "qwen2.5-coder-1.5b-instruct.Q4_K_M.gguf": "Qwen2.5-Coder-1.5B, Q4_K_M",
    "gemma3-270m.Q4_K_M.gguf": "Gemma 3 270M, Q4_K_M",
}  # fmt: skip
MARKED = {"kgw+caw": "plain", "fast kgw+caw": "fast", "bfloat16 kgw+caw": "bfloat16"}  # and the same without a mark


def _runs(instructions: str) -> list[dict[str, Any]]:
    """Those on a processor whose best instructions are these."""
    runs = read_result("quantization.json.xz")["runs"]
    found = [run for run in runs if best_instructions(run["processor"]) == instructions]
    if not found:
        raise KeyError(f"no run on a processor with {instructions}")
    return found


def quantization(instructions: str) -> str:
    """Time of a step from blocks compared with llama.cpp's."""
    lines, runs = [], _runs(instructions)
    for run in runs:
        about = run["arguments"]
        for row in run["rows"]:
            ratios = sorted(row["ratios"])
            low, half, high = (ratios[len(ratios) * k // 4] for k in (1, 2, 3))
            step = middle(row["seconds"])
            lines.append((
                MODELS[about["model"]], about["prefix"], row["batch"], SIDES.get(row["side"], row["side"]),
                f"{row['rows']:.2f}" if row.get("rows", 1) != 1 else "",
                f"{step * 1e3:.1f}", "1" if row["side"] == "llama.cpp" else f"{half:.2f} ({low:.2f} - {high:.2f})",
                per_cent(run["floor"] / step, 0),
            ))  # fmt: skip
    commands = "\n".join(run["command"] for run in runs)
    header = ("model", "prompt", "batch", "side", "rows", "ms per step", "speed relative to llama.cpp (quartiles)",
              "share of the floor's speed")  # fmt: skip
    return f"{as_table(header, lines)}\n\n{source('quantization.json.xz')} The commands:\n\n```bash\n{commands}\n```"


def quantized_marks(instructions: str) -> str:
    """Time with KGW under CAW over the time without: median, minimum and maximum of the rounds."""
    lines = []
    for run in _runs(instructions):
        taken = {(row["batch"], row["side"]): row["seconds"] for row in run["rows"]}
        for batch in dict.fromkeys(batch for batch, _ in taken):
            cells = []
            for marked, plain in MARKED.items():
                pairs = zip(taken.get((batch, marked), ()), taken.get((batch, plain), ()), strict=True)
                each = sorted(a / b for a, b in pairs)
                cells.append(f"{middle(each):.2f} ({each[0]:.2f} - {each[-1]:.2f})" if each else "")
            lines.append((MODELS[run["arguments"]["model"]], run["arguments"]["prefix"], batch, *cells))
    header = ("model", "prompt", "batch", "blocks", "fast products", "bfloat16")
    return f"{as_table(header, lines)}\n\n{source('quantization.json.xz')}"
