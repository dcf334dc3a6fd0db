"""Tables of measured results for the pages, made from what benchmarks/results holds when the site is built.

A page names one: `<!-- table: NAME -->`, or with a run of `caw evaluate`: `<!-- table: accuracy qwen05 -->`. Every
figure stands in a result file, and the file and its command are named under the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import everyday as everyday_texts
import tables as benchmark_tables
from attacked_tables import attacked
from cost_tables import (
    cool_texts,
    drawn_cost,
    drawn_found,
    marks_compared,
    race_answers,
    race_ends,
    retried_cost,
)
from detection_tables import (
    detect_speed,
    detection,
    drawn_reader,
    mixed_load,
    model_weights,
    model_weights_null,
    null,
    power,
    readings,
    regions,
    retokenise,
    short_texts,
    variants,
    weights,
)
from goal_tables import speed_goals
from gpu_tables import gpu_drawn, gpu_kernels, gpu_steps, gpu_weights
from guard_tables import (
    guard,
    guard_curve,
    guard_equal,
    guard_everyday,
    guard_json,
    guard_limits,
    guard_null,
    guard_searches,
    guard_unspliced,
)
from llama_cpp_tables import llama_cpp
from loading_tables import loading, prefill
from look_ahead_tables import look_ahead, look_ahead_texts
from quantization_tables import quantization, quantized_marks
from result_files import RESULTS, ROOT, as_table, per_cent, read_result, share, source, with_ends
from run_tables import accuracy, cost, drawn, equal_detection, own_weights, summary
from speed_tables import (
    batches,
    cpu_ops,
    draft_goals,
    drafts,
    drawing,
    floor,
    loop,
    many_keys,
    products,
    prompt_cache,
    rounding,
    row_invariance,
    servers,
    servers_blocks,
    serving,
    vllm_cost,
)
from step_tables import no_look_ahead, step_parts, synthid_steps
from universal_tables import (
    everyday_policies,
    universal,
    universal_beside,
    universal_combinations,
    universal_combined,
    universal_deeper,
    universal_grid,
    universal_judged,
    universal_key,
    universal_texts,
    universal_windows,
)

WEIGHTS = ROOT / "caw" / "evaluator" / "weights"


def table(name: str) -> str:
    """The table of a marker: a name, and for evaluations the run. KeyError for an unknown one."""
    kind, *arguments = name.split()
    if kind in benchmark_tables.TABLES:
        return benchmark_tables.TABLES[kind](RESULTS)
    if kind not in TABLES:
        raise KeyError(f"no table {kind!r}; known are {', '.join(sorted({**TABLES, **benchmark_tables.TABLES}))}")
    return TABLES[kind](*arguments)


# ---- everyday texts --------------------------------------------------------------------------------------------------
@lru_cache
def _everyday() -> list[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    """(file name, content, rows) of every run that has been published."""
    read = [(path.name, everyday_texts.read_everyday(path)) for path in sorted(RESULTS.glob("everyday_*.json.xz"))]
    return [(name, found, list(everyday_texts.rows(found))) for name, found in read]


def _everyday_table(
    header: Sequence[str], line: Callable[[dict[str, Any]], Sequence[Any] | None], said: str, tasks: Sequence[str] = ()
) -> str:
    """A table of a line for each cell of every run, where `line` makes one; without a run, a table that says so.

    tasks: cells of these only; of all where there are none.
    """
    lead = ("model", "decoding", "maximum tokens", "setting", "texts")
    lines = [
        (row["model"], row["decoding"], row["limit"], "no watermark" if row["policy"] == "none" else row["policy"],
         row["texts"], *cells)
        for _, _, rows in _everyday() for row in rows
        if (not tasks or row["task"] in tasks) and (cells := line(row)) is not None
    ]  # fmt: skip
    if not lines:
        lines = [("not measured yet", *[""] * (len(lead) + len(header) - 1))]
    names = ", ".join(f"`benchmarks/results/{name}`" for name, _, _ in _everyday())
    return f"{as_table((*lead, *header), lines)}\n\n{said}" + (
        f" *From {names}, made by `benchmarks/evaluation/everyday.py`.*" if names else ""
    )


def everyday(*tasks: str) -> str:
    """Everyday texts: the share detected at 0.1 %, the attempts, and statistics relative to unmarked texts."""

    def line(row: dict[str, Any]) -> Sequence[Any]:
        return (
            with_ends(*row["found"]), "" if row["made"] is None else f"{row['made']:.2f}", f"{row['tokens']:.0f}",
            share(row["ended"]), "" if row["scored"] is None else f"{row['scored']:.0f}",
            _with_ends(row["perplexity"]), *("" if d is None else per_cent(d) for d in row["distinct"]),
            "" if row["repeated"] is None else per_cent(row["repeated"]), _points(row["repeated_over"]),
        )  # fmt: skip

    judges = {rows[0]["model"]: found["judge"] for _, found, rows in _everyday() if found["judge"]}
    said = "One key; threshold 0.001 (for texts without a watermark: false alarms). Tokens are medians."
    if judges:
        said += f" Perplexity: {'; '.join(f'{model} under {judge}' for model, judge in judges.items())}."
    header = ("detected (95 % interval)", "attempts", "tokens", "ended", "tokens that count",
              "perplexity relative to unmarked", "distinct words", "distinct 2-grams", "distinct 3-grams",
              "repeated 4-grams", "minus unmarked, points")  # fmt: skip
    return _everyday_table(header, line, said, tasks)


def everyday_attacks() -> str:
    """Everyday texts: the share detected at 0.1 % after each attack."""
    attacks = sorted({name for _, _, rows in _everyday() for row in rows for name in row["after"]})

    def line(row: dict[str, Any]) -> Sequence[Any] | None:
        hit = [row["after"].get(name) for name in attacks]
        cells = ["" if found is None else f"{with_ends(*found[0])}; {share(found[1])}" for found in hit]
        return (with_ends(*row["found"]), *cells) if any(cells) else None

    said = "Share detected, its 95 % interval, and the share of words that the attack really changed."
    return _everyday_table(("not attacked", *attacks), line, said)


def _with_ends(value: tuple[float, float, float] | None, digits: int = 2) -> str:
    """A number with so many digits behind the point, and the ends of its interval; nothing for None."""
    if value is None:
        return ""
    middle, low, high = (f"{part:.{digits}f}" for part in value)
    return f"{middle} ({low} {'-' if value[1] >= 0 else 'to'} {high})"


def _points(value: tuple[float, float, float] | None) -> str:
    """A difference of shares in percentage points, and the ends of its interval; nothing for None."""
    return "" if value is None else "{:+.1f} ({:.1f} to {:.1f})".format(*(100 * part for part in value))


# ---- evaluators ------------------------------------------------------------------------------------------------------
def ablation(model: str) -> str:
    """The evaluators that were tried for a model, as `caw evaluate evaluator` wrote them."""
    return evaluators(f"evaluator_ablation_{model}")


def top_k(model: str) -> str:
    """The same with fewer probabilities of each position."""
    return evaluators(f"evaluator_top_k_{model}")


def evaluators(name: str) -> str:
    text = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    return f"{text.split(chr(10), 2)[2]}\n\n{source(f'{name}.json')}"


def shipped() -> str:
    """The evaluators that come with the library, on the held-out documents of their labels."""
    rows = []
    for path in sorted(WEIGHTS.glob("*.json")):
        about = json.loads(path.read_text(encoding="utf-8"))
        metrics = about["metrics"]
        if "trained_on" in about:  # something else than key segments
            continue
        low, high = metrics["auroc_ci"]
        found = metrics["evaluators"]
        rows.append((
            f"`{path.stem}`", about["model"], about["data"]["documents"], f"{found['capacity']['auroc']:.3f}",
            f"{low:.3f} - {high:.3f}", f"{found['entropy']['auroc']:.3f}", f"{found['logit_delta']['auroc']:.3f}",
        ))  # fmt: skip
    header = ("evaluator", "model", "documents", "AUROC", "95 % interval", "AUROC of entropy", "AUROC of the logit gap")
    return f"{as_table(header, rows)}\n\n*From `caw/evaluator/weights/*.json`; each file names its command.*"


def transfer() -> str:
    """An evaluator of one model, read on another."""
    rows = [
        (r["trained_on"], r["read_on"], f"{r['auroc']:.3f}", f"{r['own_evaluator_auroc']:.3f}",
         f"{r['entropy_auroc']:.3f}")
        for r in read_result("evaluator_transfer.json")["rows"]
    ]  # fmt: skip
    header = ("trained on", "used on", "AUROC", "AUROC of that model's own", "AUROC of entropy")
    return f"{as_table(header, rows)}\n\n{source('evaluator_transfer.json')}"


def damage() -> str:
    """Which scores predict that a changed token changes the answer."""
    name = "evaluator_damage_qwen2.5-coder-0.5b.json"
    found = read_result(name)
    rows = [
        (r["score"], f"{r['auroc_changed']:.3f} ({r['auroc_changed_ci'][0]:.2f} - {r['auroc_changed_ci'][1]:.2f})",
         f"{r['auroc_harmed']:.3f}")
        for r in found["rows"]
    ]  # fmt: skip
    said = f"{found['changes']} changes in {found['questions']} questions; {share(found['answers_changed'])} changed "
    header = ("score", "AUROC, answer changed (95 % interval)", "AUROC, right answer lost")
    return f"{as_table(header, rows)}\n\n{said}the answer. {source(name)}"


TABLES: dict[str, Callable[..., str]] = {
    "readings": readings,
    "accuracy": accuracy, "equal": equal_detection, "null": null, "power": power, "variants": variants,
    "mixed-load": mixed_load, "drawn-reader": drawn_reader, "short-texts": short_texts, "guard": guard,
    "guard-curve": guard_curve, "guard-limits": guard_limits, "guard-json": guard_json,
    "guard-everyday": guard_everyday,
    "guard-unspliced": guard_unspliced, "guard-equal": guard_equal, "guard-null": guard_null,
    "guard-searches": guard_searches,
    "retokenise": retokenise,
    "weights": weights, "regions": regions, "detection": detection, "detect-speed": detect_speed, "floor": floor,
    "products": products, "rounding": rounding, "loading": loading, "prefill": prefill, "llama-cpp": llama_cpp,
    "quantization": quantization, "quantized-marks": quantized_marks,
    "many-keys": many_keys, "serving": serving, "servers": servers, "servers-blocks": servers_blocks, "drafts": drafts,
    "draft-goals": draft_goals, "speed-goals": speed_goals,
    "prompt-cache": prompt_cache, "batches": batches, "drawing": drawing, "vllm": vllm_cost,
    "step-parts": step_parts, "no-look-ahead": no_look_ahead, "synthid-steps": synthid_steps, "cpu-ops": cpu_ops,
    "row-invariance": row_invariance, "loop": loop, "ablation": ablation, "transfer": transfer,
    "universal": universal, "universal-key": universal_key, "universal-texts": universal_texts,
    "universal-judged": universal_judged, "universal-combinations": universal_combinations,
    "universal-deeper": universal_deeper, "universal-grid": universal_grid, "universal-combined": universal_combined,
    "universal-beside": universal_beside, "universal-windows": universal_windows,
    "everyday-policies": everyday_policies,
    "top-k": top_k, "own-weights": own_weights,
    "summary": summary, "cost": cost, "drawn": drawn, "shipped": shipped, "everyday": everyday,
    "everyday-attacks": everyday_attacks, "attacked": attacked,
    "damage": damage, "model-weights": model_weights,
    "model-weights-null": model_weights_null,
    "look-ahead": look_ahead, "look-ahead-texts": look_ahead_texts,
    "drawn-found": drawn_found, "drawn-cost": drawn_cost, "marks-compared": marks_compared,
    "retried-cost": retried_cost, "race-answers": race_answers,
    "cool-texts": cool_texts, "race-ends": race_ends,
    "gpu-steps": gpu_steps, "gpu-drawn": gpu_drawn, "gpu-weights": gpu_weights, "gpu-kernels": gpu_kernels,
}  # fmt: skip
