"""Result files by name, the commands that made them, and the form of a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from caw.io.json_files import opened, packed_json

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "evaluation")]  # tables import what made the results
# what `best_instructions` says of a processor
INSTRUCTIONS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX-512", "amx_bf16": "AMX"}
# of files that do not name their own
COMMANDS = {
    "detection.json": "python benchmarks/bench_detection.py",
    "detection_beta2.json": "python benchmarks/bench_detection.py --beta 2",
    "floor.json": "python benchmarks/bench_floor.py",
    "guard.json.xz": "python benchmarks/bench_guard.py gather runs/guard-*.jsonl",
    "everyday_policies.json": (
        "python benchmarks/bench_everyday_policies.py MODELS --models smollm2 qwen05 gemma270m --out FILE"
    ),
    "batches.json": "python benchmarks/bench_batches.py",
    "parts.json": "python benchmarks/bench_parts.py",
    "synthid_steps.json": (
        "python benchmarks/bench_drawn.py --tokens 32 --rounds 4 --marks plain exp synthid exp+caw synthid+caw "
        '--ways greedy "T .7, top-p .95"'
    ),
    "no_look_ahead.json": (
        "python benchmarks/bench_drawn.py --marks plain kgw+caw kgw+window00 exp+caw exp+window00 --ways greedy "
        "--batches 8 16 --dtypes float32 bfloat16 --rounds 5"
    ),
    "vllm.json": 'python benchmarks/bench_vllm.py MODEL --rounds 5 --ways greedy "T .8, top-p .95"',
    "own_weights_qwen05target.json.xz": (
        "python benchmarks/evaluation/own_weights.py runs/qwen05target --practice runs/qwen05practice"
    ),
    "variants.json": "python benchmarks/bench_variants.py --keys 5",
    "short_texts.json": "python benchmarks/bench_short_texts.py --prompts 8",
    "mixed_load.json": "python benchmarks/bench_mixed_load.py --rows 16 --requests 32 --tokens 24 --rounds 3",
    "drawn_reader.json": "python benchmarks/bench_drawn_reader.py --subjects smollm2 qwen05 --models MODELS",
    "full_race.json": "python benchmarks/bench_full_race.py --draws 48000",
    "race_answers.json.xz": "python benchmarks/evaluation/race_answers.py runs/qwen05race",
    "race_ends.json": (
        "python benchmarks/evaluation/race_ends.py runs/qwen05race rows.jsonl --model MODEL.gguf "
        "--cells '*.race-[13].*'"
    ),
    "cool_texts.json": "python benchmarks/bench_cool_texts.py runs/cool.jsonl",
    "cost.json.xz": "python benchmarks/bench_cost.py --folder runs/cost --models MODELS",
    "row_invariance.json.xz": "python benchmarks/bench_row_invariance.py --rounds 5",
    "loop.json": "python benchmarks/bench_loop.py --tokens 48",
    "prompt_cache.json": "python benchmarks/bench_prompt_cache.py --prompts 128 512 --rounds 3",
    **{
        f"evaluation_{run}/results.json.xz": f"caw evaluate run --config benchmarks/evaluation/{run}.yaml"
        for run in (
            "qwen05",
            "qwen05keys",
            "qwen05ends",
            "qwen05target",
            "qwen05drawn",
            "qwen05others",
            "qwen15",
            "qwen15ends",
            "qwen15target",
        )
    },
}


@lru_cache
def read_result(name: str) -> Any:
    with opened(_kept(name)) as file:
        return json.load(file)


def _kept(name: str) -> Path:
    """The file of a result, compressed or not."""
    path = RESULTS / name
    return path if path.exists() else packed_json(path)


def source(name: str) -> str:
    """The file behind a table, and its command where the file names it."""
    found = read_result(name)
    kept = _kept(name).relative_to(RESULTS)
    command = found.get("command") if isinstance(found, dict) else None
    command = command or COMMANDS.get(str(kept))
    return f"*From `benchmarks/results/{kept}`" + (f", made by `{command}`.*" if command else ".*")


def as_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def share(value: float) -> str:
    """A share in per cent with two digits that count."""
    return f"{float(f'{100 * value:.2g}'):g} %" if value else "0"


def per_cent(value: float, digits: int = 1) -> str:
    """A share in per cent with so many digits behind the point."""
    return f"{100 * value:.{digits}f} %"


def with_ends(value: float, low: float, high: float, digits: int = 0) -> str:
    """A share in per cent and the ends of its interval, such as "62 % (47 - 76)"."""
    return f"{per_cent(value, digits)} ({100 * low:.{digits}f} - {100 * high:.{digits}f})"


def middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
