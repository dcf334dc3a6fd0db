"""Tables of measured results for the pages, made from what benchmarks/results holds when the site is built.

A page names one: `<!-- table: NAME -->`, or with a run of `caw evaluate`: `<!-- table: accuracy qwen05 -->`. Every
figure stands in a result file, and the file and its command are named under the table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from cost_tables import (
    SUBJECTS,
    cool_texts,
    drawn_cost,
    drawn_found,
    marks_compared,
    race_answers,
    race_ends,
    retried_cost,
)
from gpu_tables import gpu_drawn, gpu_kernels, gpu_steps, gpu_weights
from guard_tables import guard, guard_curve, guard_everyday, guard_json, guard_unspliced
from llama_cpp_tables import llama_cpp
from loading_tables import loading, prefill
from look_ahead_tables import look_ahead, look_ahead_texts
from quantization_tables import quantization, quantized_marks
from result_files import RESULTS, ROOT, as_table, middle, per_cent, read_result, share, source, with_ends
from run_tables import accuracy, cost, drawn, equal_detection, own_weights, summary
from step_tables import no_look_ahead, step_parts, synthid_steps
from swap_tables import swaps
from universal_tables import everyday_policies, universal, universal_key, universal_texts

from caw.evaluation.metrics.accuracy import wilson

WEIGHTS = ROOT / "caw" / "evaluator" / "weights"

sys.path.append(str(ROOT / "benchmarks"))  # its tables.py makes those of benchmarks/README.md
sys.path.append(str(ROOT / "benchmarks" / "evaluation"))

import everyday as everyday_texts  # noqa: E402
import tables as benchmark_tables  # noqa: E402
from attacked_tables import attacked  # noqa: E402


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


# ---- detection -------------------------------------------------------------------------------------------------------
def null() -> str:
    """False alarms on unmarked text, pooled over keys."""
    found = read_result("detect_null.json")
    names = list(dict.fromkeys(row["watermark_name"] for row in found["rows"]))
    levels = [rate["level"] for rate in found["rows"][0]["rates"]]
    rows = []
    for name in names:
        own = [row for row in found["rows"] if row["watermark_name"] == name]
        for how, says in (("once", "once in the corpus"), ("rates", "text by text")):
            spans = [[row[how][i]["rate"] for row in own] for i in range(len(levels))]
            rows.append((name, says, *(f"{share(min(s))} - {share(max(s))}" for s in spans)))
    once = [rate for row in found["rows"] for rate in row["once"]]
    above = sum(rate["low"] > rate["level"] for rate in once)
    texts = (
        f"{found['texts']:,} texts, {found['tokens']:,} tokens, the minimum and the maximum rate of 5 keys. "
        f"Counted once, {above} of {len(once)} rates are above their level by more than their 95 % interval."
    )
    header = ("watermark", "evidence counted", *(f"p <= {level:g}" for level in levels))
    return f"{as_table(header, rows)}\n\n{texts} {source('detect_null.json')}"


def power() -> str:
    """Share of marked texts detected by length, measured and expected."""
    found = read_result("detect_power.json")
    rows = [
        (r["watermark"], r["prompts"], r["tokens"], f"{r['fpr']:g}", r["texts"],
         with_ends(r["measured"], r["low"], r["high"]), per_cent(r["expected"], 0))
        for r in found["rows"]
    ]  # fmt: skip
    header = ("watermark", "prompts", "tokens", "level", "texts", "detected (95 % interval)", "expected")
    return f"{as_table(header, rows)}\n\n{source('detect_power.json')}"


def variants() -> str:
    """Share of drawn texts detected by length and number of variants."""
    found = read_result("variants.json")
    sizes = sorted({row["variants"] for row in found["rows"]})
    groups: dict[tuple[int, float], list[dict[str, Any]]] = {}
    for row in found["rows"]:
        groups.setdefault((row["tokens"], row["level"]), []).append(row)
    rows = [
        (tokens, f"{level:g}", own[0]["texts"],
         *(with_ends(row["found"], row["low"], row["high"]) for row in sorted(own, key=lambda row: row["variants"])))
        for (tokens, level), own in groups.items()
    ]  # fmt: skip
    header = ("tokens", "level", "texts", *(f"V = {size}" for size in sizes))
    return f"{as_table(header, rows)}\n\n{source('variants.json')}"


def mixed_load() -> str:
    """What a batch of both families of a `caw.Recommended` costs."""
    found = read_result("mixed_load.json")
    said = {
        "greedy": "greedy only, KGW under CAW",
        "drawn": "drawn only, race at full strength",
        "mixed": "half and half, one batch",
        "two queues": "half and half, two batches of half as many rows",
    }
    rows = [
        (said[r["load"]], f"{r['tokens_per_second']:.1f}",
         f"{r['ratio']:.2f} ({r['least']:.2f} to {r['greatest']:.2f})")
        for r in found["rows"]
    ]  # fmt: skip
    header = ("requests", "tokens per second of processor time", "time, relative to the mean of one family alone")
    return f"{as_table(header, rows)}\n\n{source('mixed_load.json')}"


def drawn_reader() -> str:
    """Share of drawn texts that a reader finds, of what any test could find, by model, temperature and length."""
    found = read_result("drawn_reader.json")
    columns = {"bound": "any test", "reader": "reader", "off -0.3": "0.3 too low", "off +0.3": "0.3 too high",
               "unprompted": "without the prompt", "greedy": "as if greedy", "plain": "no reader"}  # fmt: skip

    def cell(row: dict[str, Any], name: str, kind: str) -> str:
        share, texts = row[name][kind], row["texts"]
        return with_ends(share, *wilson(round(share * texts), texts)) if name == "reader" else per_cent(share, 0)

    rows = [
        (SUBJECTS[row["model"]], f"{row['temperature']:g}", row["tokens"], row["texts"], says,
         *(cell(row, name, kind) for name in columns))
        for row in found["rows"] for kind, says in (("family", "all 64 variants"), ("alone", "the one of a receipt"))
    ]  # fmt: skip
    header = ("model", "temperature", "tokens", "texts", "tested", *columns.values())
    return f"{as_table(header, rows)}\n\n{source('drawn_reader.json')}"


def short_texts() -> str:
    """Share of drawn texts detected by length and temperature, and what retrying adds."""
    found = read_result("short_texts.json")

    def counted(value: float, texts: int) -> str:
        return with_ends(value, *wilson(round(value * texts), texts))

    rows = [
        (f"{r['temperature']:g}", r["tokens"], r["texts"], counted(r["found"], r["texts"]),
         counted(r["retried"], r["texts"]), f"{r['decoded']:.2f}")
        for r in found["rows"]
    ]  # fmt: skip
    header = ("T", "tokens", "texts", "detected at 0.1 %", "with four attempts", "texts decoded for each")
    return f"{as_table(header, rows)}\n\nIn brackets 95 % intervals. {source('short_texts.json')}"


def retokenise() -> str:
    """What reading text instead of the generated ids changes."""
    found = read_result("detect_retokenise.json")
    rows = [
        (r["texts_of"], r["texts"], share(1 - r["same"]), share(r["lost"]), r["tests"],
         f"{r['median_log10_p']['ids']:.1f}", f"{r['median_log10_p']['text']:.1f}",
         per_cent(r["found"]["ids"]), per_cent(r["found"]["text"]))
        for r in found["rows"]
    ]  # fmt: skip
    header = ("texts of", "texts", "with other ids", "tokens lost", "tests", "median log10 p, ids", "from text",
              "detected, ids", "from text")  # fmt: skip
    return f"{as_table(header, rows)}\n\nLevel {found['fpr']:g}. {source('detect_retokenise.json')}"


def weights() -> str:
    """Weighted against unweighted detection."""
    rows = [
        (r["how"], r["tokens"], f"{r['fpr']:g}", r["texts"], per_cent(r["plain"]), per_cent(r["weighted"]), r["gained"],
         r["lost"], f"{r['sign_test_p']:.3f}")
        for r in read_result("detect_weights.json")["rows"]
    ]  # fmt: skip
    header = ("marked by", "tokens", "level", "texts", "detected", "weighted", "gained", "lost", "sign test p")
    return f"{as_table(header, rows)}\n\n{source('detect_weights.json')}"


READERS = {"none": "-", "prompt": "model and prompt", "no prompt": "model", "calibrated": "model, calibrated"}


def model_weights(name: str = "model_weights") -> str:
    """Share of marked texts detected with weights from a model, by length."""
    cases: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in read_result(f"{name}.json.xz")["rows"]:
        case = row["arm"], row["length"], f"{row['fpr']:g}", row["texts"]
        cases.setdefault(case, {})[row["reader"]] = with_ends(row["rate"], row["low"], row["high"])
    rows = [(*case, *(found[reader] for reader in READERS)) for case, found in cases.items()]
    said = ("no weights" if name == "-" else f"weights from the {name}" for name in READERS.values())
    header = ("marked by", "tokens", "level", "texts", *said)
    return f"{as_table(header, rows)}\n\nShare detected; brackets: 95 % intervals. {source(f'{name}.json.xz')}"


def model_weights_null() -> str:
    """False alarms of weights from a model: the mean over keys, its interval, minimum and maximum of a key."""
    found = read_result("model_weights_null.json")
    lines = []
    for row in found["rows"]:
        rates = np.array(row["rates"])
        mean, low, high = everyday_texts.mean_interval(rates)
        lines.append((
            row["arm"], READERS[row["reader"]], f"{row['fpr']:g}", f"{row['texts']} x {len(rates)}",
            with_ends(mean, max(low, 0), high, 2), f"{100 * rates.min():.1f} - {per_cent(rates.max())}",
        ))  # fmt: skip
    header = ("weights for", "weights from", "level", "texts x keys", "false alarms (95 % interval, by key)",
              "minimum and maximum of a key")  # fmt: skip
    return f"{as_table(header, lines)}\n\n{source('model_weights_null.json')}"


def regions() -> str:
    """How well marked parts of longer texts are located."""
    found = read_result("detect_regions.json")
    rows = [
        (r["kind"], r["case"], r["texts"], r["found"], per_cent(r["covered"], 0), per_cent(r["marked"], 0))
        for r in found["rows"] if "covered" in r
    ]  # fmt: skip
    header = ("kind of text", "marked part", "texts", "detected", "part covered", "regions marked")
    return f"{as_table(header, rows)}\n\nMedians; level {found['fpr']:g}. {source('detect_regions.json')}"


def detection(name: str = "detection.json") -> str:
    """24 prompts, plain, marked and marked under CAW."""
    found = read_result(name)
    rows = [
        (r["variant"], f"{r['found']} of {r['texts']}", f"{r['median_p']:.1e}", share(r["changed"]),
         f"{r['surprise']:.2f}")
        for r in found["rows"]
    ]  # fmt: skip
    about = found["arguments"]
    header = ("variant", f"detected at {about['fpr']:g}", "median p", "tokens changed", "surprise, nats per token")
    return f"{as_table(header, rows)}\n\n{about['model']}, {about['tokens']} tokens. {source(name)}"


def detect_speed() -> str:
    """How fast texts are read."""
    found = read_result("detect_speed.json")
    rows = [(r["name"], f"{r['tokens_per_second'] / 1e6:.2f}") for r in found["rows"]]
    said = f"Threads: {found['threads']}. {source('detect_speed.json')}"
    return f"{as_table(('operation', 'million tokens/s'), rows)}\n\n{said}"


# ---- speed -----------------------------------------------------------------------------------------------------------
def many_keys() -> str:
    """One text under thousands of keys."""
    found = read_result("many_keys.json")
    rows = [(r["watermark"], r["work"], f"{r['seconds']:.4f}") for r in found["rows"]]
    about = f"{found['keys']:,} keys, {found['tokens']} tokens, one thread. {source('many_keys.json')}"
    return f"{as_table(('watermark', 'what', 'seconds'), rows)}\n\n{about}"


def serving() -> str:
    """Throughput of serving relative to the library."""
    found = read_result("serve.json")
    rows = [
        (r["clients"], f"{middle(r['rates']['library']):.0f}", f"{middle(r['rates']['server']):.0f}",
         f"{r['ratio']:.2f} ({r['least']:.2f} to {r['greatest']:.2f})")
        for r in sorted(found["rows"], key=lambda row: row["clients"])
    ]  # fmt: skip
    header = ("concurrent clients, batch", "`caw.iter_generate`", "`caw serve`", "ratio, median and range")
    what = f"Tokens per second of processor time, {found['model']}, threads: {found['threads']}, streams."
    return f"{as_table(header, rows)}\n\n{what} {source('serve.json')}"


def servers_blocks() -> str:
    """`caw serve` beside llama.cpp's server, both from a file's blocks."""
    rows = [row for row in read_result("servers.json")["rows"] if row["dtype"] == "blocks"]
    return f"{_throughputs(rows)}\n\n{source('servers.json')}"


def _throughputs(rows: list[dict[str, Any]]) -> str:
    ways = {"greedy": "greedy", "drawn": "T 0.7", "nucleus": "T 0.7, top-p 0.95"}
    lines = [
        (r["clients"], ways[r["way"]], r["side"] + _threads(r), f"{r['rate'][0]:.0f}", _with_range(r["ratio"]),
         _with_range(r["own_ratio"]))
        for r in rows if r["way"] in ways
    ]  # fmt: skip
    header = ("requests at once", "words", "server", "tokens per second", "relative to the first",
              "the same per second of processor time")  # fmt: skip
    return as_table(header, lines)


def servers() -> str:
    """`caw serve` beside vLLM: throughput, and what a busy server makes a long prompt and the other texts wait."""
    rows = [row for row in read_result("servers.json")["rows"] if row["dtype"] != "blocks"]
    tables = [_throughputs(rows)]
    waits = [
        (r["clients"], r["side"] + _threads(r), f"{r['first'][0]:.2f}", _with_range(r["first_ratio"]),
         f"{r['gap_ms'][0]:.0f}", f"{r['gap_99'][0]:.1f}")
        for r in rows if r["way"] == "busy"
    ]  # fmt: skip
    if waits:
        header = (
            "texts at once",
            "server",
            "first token of 1,000, s",
            "relative to the first",
            "between tokens, ms",
            "99th percentile over median",
        )
        tables.append(as_table(header, waits))
    return "\n\n".join([*tables, source("servers.json")])


def _threads(row: dict[str, Any]) -> str:
    return "" if row["side"].startswith("vLLM") else f" ({row['threads']} thread{'s' * (row['threads'] > 1)})"


UNMARKED = {"unmarked drafts": ", unmarked guesses"}


def drafts() -> str:
    """Throughput with drafts and without, relative to plain decoding without them."""
    found = read_result("drafts.json.xz")
    rows = {(r["model"], r["drafter"], r["batch"], r["prompts"], r["variant"]): r for r in found["rows"]}
    lines = []
    for (*case, variant), r in rows.items():
        without, _, guessed = variant.partition(" + ")
        if not guessed:
            continue
        model, drafter, batch, prompts = case
        before = rows.get((*case, without), rows.get((*case[:3], prompts.split(",")[0], without)))
        said = model.split(".Q")[0] + (f", drafts of {drafter.split('.Q')[0]}" if drafter else "")
        lines.append((
            said, batch, f"{prompts} ({r['texts']})", without + UNMARKED.get(guessed, ""),
            f"{before['speed_over_plain']:.2f}", f"{r['speed_over_plain']:.2f}",
            *(f"{r[name]:.2f}" if r[name] is not None else "" for name in ("tokens_per_pass", "rows_per_pass")),
            "" if r["acceptance"] is None else share(r["acceptance"]), r["instructions"],
        ))  # fmt: skip
    header = ("model", "batch", "prompts (texts)", "decoding", "throughput without", "with drafts", "tokens per pass",
              "rows", "drafts accepted", "best instruction set")  # fmt: skip
    commands = "\n".join(found["commands"].values())
    return f"{as_table(header, lines)}\n\n{source('drafts.json.xz')} Its commands:\n\n```bash\n{commands}\n```"


# speed over plain decoding without drafts, with CAW on, at batch 1
GOALS = {
    "smollm2-135m": {"GSM8K": 1.4, "rewriting": 1.7, "chat": 1.0},
    "qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf": {"GSM8K": 1.25, "rewriting": 1.3, "code editing": 1.3, "chat": 1.0},
}


def draft_goals() -> str:
    """What was to be reached with drafts under CAW, and what was."""
    rows = {(r["model"], r["prompts"], r["variant"]): r for r in read_result("drafts.json.xz")["rows"]
            if r["batch"] == 1 and r["drafter"] is None}  # fmt: skip
    lines = []
    for model, kinds in GOALS.items():
        for kind, goal in kinds.items():
            own = [rows[model, kind, f"{mark}, CAW + drafts"] for mark in ("KGW", "EXP")]
            reached = [
                f"{r['speed_over_plain']:.2f}" + ("" if r["speed_over_plain"] >= goal else " (missed)") for r in own
            ]
            lines.append((model.split(".Q")[0], kind, f"{goal:.2f}", *reached, own[0]["instructions"]))
    header = ("model", "prompts", "goal", "KGW, CAW", "EXP, CAW", "best instruction set")
    return f"{as_table(header, lines)}\n\n{source('drafts.json.xz')}"


def floor() -> str:
    """Plain decoding against transformers and against the time of reading the weights once."""
    rows = [
        (r["dtype"], r["batch"], f"{1000 * middle(r['seconds']['caw']):.1f}", f"{r['ratio']:.2f}",
         share(r["share_of_floor"]))
        for r in read_result("floor.json")["rows"]
    ]  # fmt: skip
    header = ("dtype", "batch", "ms per step", "transformers' time relative to ours",
              "share of the speed of reading the weights once")  # fmt: skip
    return f"{as_table(header, rows)}\n\n{source('floor.json')}"


def loop() -> str:
    """The share of a step that a target takes."""
    rows = [
        (r["dtype"], r["watermark"].upper(), r["batch"], f"{r['step_ms']:.1f}", f"{r['loop_ms']:.2f}",
         "{:.2f} % ({:.2f} - {:.2f})".format(*(100 * share for share in r["share"])))
        for r in read_result("loop.json")["rows"]
    ]  # fmt: skip
    header = ("dtype", "mark, under CAW", "batch", "ms per step", "loop, ms", "share (minimum - maximum)")
    return f"{as_table(header, rows)}\n\n{source('loop.json')}"


def products() -> str:
    """Products of a few rows by what reads which weights: microseconds and bytes of weights a second."""
    found = read_result("products.json")
    cases = found["rows"]
    sides = list(dict.fromkeys(side for case in cases for side in case["bytes"]))
    lines = [
        (f"{case['model'].split('.Q')[0]}, {case['case']}, {' and '.join(case['types'])}", rows, *(
            f"{us[side][1]:.{0 if us[side][1] > 999 else 1}f} ({case['bytes'][side] / us[side][1] / 1e3:.1f})"
            if side in us else "" for side in sides
        )) for case in cases for rows, us in case["us"].items()
    ]  # fmt: skip
    spread = sorted((us[2] - us[0]) / us[1] for case in cases for row in case["us"].values() for us in row.values())
    errors = ", ".join(f"{side} {max(case['error'].get(side, 0) for case in cases):.2g}" for side in sides)
    said = (
        f"Microseconds, in brackets GB/s of weights. Medians of {found['arguments']['rounds']} rounds in turns; their "
        f"quartiles are {share(middle(spread))} apart in the middle case, {share(spread[len(spread) * 9 // 10])} in "
        f"one of ten. The same thread copies {found['copy'] / 1e9:.1f} GB/s. Maximum error against float64: "
        f"{errors}. On a {found['machine']}."
    )
    return f"{as_table(('matrices', 'rows', *sides), lines)}\n\n{said} {source('products.json')}"


def rounding() -> str:
    """What rounding matrices to 8 or 4 bits costs."""
    keys = ("rounding", "bits", "products", "logits", "divergence")
    rows = [[row[key] for key in keys] for row in read_result("rounding.json")["rows"]]
    header = ("rounding", "bits per weight", "error of products", "error of logits", "next token's divergence, nats")
    return f"{as_table(header, rows)}\n\n{source('rounding.json')}"


def prompt_cache() -> str:
    """Time of the same prompts under several settings with a PromptCache, of the time without."""
    rows = [
        (r["prompt"], f"{r['ratio']['median']:.2f} ({r['ratio']['low']:.2f} - {r['ratio']['high']:.2f})")
        for r in read_result("prompt_cache.json")["rows"]
    ]
    return f"{as_table(('tokens per prompt', 'time relative to no cache'), rows)}\n\n{source('prompt_cache.json')}"


def batches() -> str:
    """Whether texts depend on what is decoded beside them."""
    rows = [
        (r["dtype"], r["mark"], r["way"], r["batch"], f"{r['equal']} of {r['texts']}")
        for r in read_result("batches.json")["rows"]
    ]
    return f"{as_table(('dtype', 'mark', 'decoding', 'batch', 'same as alone'), rows)}\n\n{source('batches.json')}"


def drawing() -> str:
    """What choosing a token takes of a step, and what the whole step takes relative to plain greedy decoding."""
    header = ("batch", "decoding", "choosing, ms a step", "step relative to plain greedy")
    rows = [
        (r["batch"], r["case"], f"{r['stages']['ladder']:.2f}", _with_range(r["ratio"]))
        for r in read_result("drawn.json")["rows"]
    ]
    return f"{as_table(header, rows)}\n\n{source('drawn.json')}"


def vllm_cost() -> str:
    """What the processor takes of a step of vLLM, and whole runs relative to unmarked ones."""
    header = ("batch", "mark", "decoding", "step, ms", "processor, ms", "share of the step", "run relative to unmarked")
    rows = [
        (r["batch"], r["mark"], r["decoding"], f"{r['step_ms'][0]:.1f}", f"{r['processor_ms'][0]:.2f}",
         "{} ({} to {})".format(*(per_cent(value) for value in r["share"])), _with_range(r["ratio"]))
        for r in read_result("vllm.json")["rows"] if r["mark"] != "off"
    ]  # fmt: skip
    return f"{as_table(header, rows)}\n\n{source('vllm.json')}"


def _with_range(numbers: list[float]) -> str:
    middle, low, high = numbers
    return f"{middle:.2f} ({low:.2f} - {high:.2f})"


def row_invariance() -> str:
    """What our products and attention take, over torch's fastest, with which a row depends on those beside it."""
    found = read_result("row_invariance.json")
    counts = list(dict.fromkeys((r["rows"], r["prompt"]) for r in found["rows"]))
    cells = {(r["shapes"], r["dtype"], r["rows"]): f"{r['ratio']:.2f} ({r['low']:.2f} to {r['high']:.2f})"
             for r in found["rows"]}  # fmt: skip
    cases = dict.fromkeys((r["shapes"], r["dtype"]) for r in found["rows"])
    rows = [(*case, *(cells[(*case, count)] for count, _ in counts)) for case in cases]
    heads = (f"prompt of {count}" if prompt else f"{count} row{'s' * (count > 1)}" for count, prompt in counts)
    return f"{as_table(('shapes', 'dtype', *heads), rows)}\n\n{source('row_invariance.json')}"


def cpu_ops() -> str:
    """Compiled operators beside what else computes the same."""
    rows = []
    for row in read_result("cpu_ops.json")["rows"]:
        others = {k: v for k, v in row.items() if k not in ("case", "compiled", "ratio", "million tokens/s")}
        said = ", ".join(f"{name} {value:g}" for name, value in others.items())
        rows.append((row["case"], f"{row['compiled']:g}", said))
    header = ("operator", "compiled, microseconds", "others, microseconds")
    return f"{as_table(header, rows)}\n\n{source('cpu_ops.json')}"


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


def readings() -> str:
    """Shares of marked texts detected and of false alarms, after what copying does to a text."""
    found = read_result("detect_readings.json")
    lines = [
        (row["damage"], *(f"{100 * row['marked']['found'][side]:.0f} %" for side in ("given", "readings")),
         *(f"{100 * row['unmarked'][level]['rate']:.2f} % ({100 * row['unmarked'][level]['upper']:.2f} %)"
           for level in ("0.01", "0.001")))
        for row in found["rows"]
    ]  # fmt: skip
    header = ("done to the text", "detected as given", "detected with readings", "false alarms at 1 %", "at 0.1 %")
    said = (
        f"{found['texts']} marked texts at 0.1 %; {found['unmarked']} unmarked texts under {found['keys']} keys, in "
        "brackets the upper bound of a 97.5 % interval."
    )
    return f"{as_table(header, lines)}\n\n{said} {source('detect_readings.json')}"


TABLES: dict[str, Callable[..., str]] = {
    "readings": readings,
    "accuracy": accuracy, "equal": equal_detection, "null": null, "power": power, "variants": variants,
    "mixed-load": mixed_load, "drawn-reader": drawn_reader, "short-texts": short_texts, "guard": guard,
    "guard-curve": guard_curve, "guard-json": guard_json, "guard-everyday": guard_everyday,
    "guard-unspliced": guard_unspliced,
    "retokenise": retokenise,
    "weights": weights, "regions": regions, "detection": detection, "detect-speed": detect_speed, "floor": floor,
    "products": products, "rounding": rounding, "loading": loading, "prefill": prefill, "llama-cpp": llama_cpp,
    "quantization": quantization, "quantized-marks": quantized_marks,
    "many-keys": many_keys, "serving": serving, "servers": servers, "servers-blocks": servers_blocks, "drafts": drafts,
    "draft-goals": draft_goals,
    "prompt-cache": prompt_cache, "batches": batches, "drawing": drawing, "vllm": vllm_cost,
    "step-parts": step_parts, "no-look-ahead": no_look_ahead, "synthid-steps": synthid_steps, "cpu-ops": cpu_ops,
    "row-invariance": row_invariance, "loop": loop, "ablation": ablation, "transfer": transfer,
    "universal": universal, "universal-key": universal_key, "universal-texts": universal_texts,
    "everyday-policies": everyday_policies,
    "top-k": top_k, "own-weights": own_weights,
    "summary": summary, "cost": cost, "drawn": drawn, "shipped": shipped, "everyday": everyday,
    "everyday-attacks": everyday_attacks, "attacked": attacked,
    "damage": damage, "model-weights": model_weights,
    "model-weights-null": model_weights_null, "swaps": swaps,
    "look-ahead": look_ahead, "look-ahead-texts": look_ahead_texts,
    "drawn-found": drawn_found, "drawn-cost": drawn_cost, "marks-compared": marks_compared,
    "retried-cost": retried_cost, "race-answers": race_answers,
    "cool-texts": cool_texts, "race-ends": race_ends,
    "gpu-steps": gpu_steps, "gpu-drawn": gpu_drawn, "gpu-weights": gpu_weights, "gpu-kernels": gpu_kernels,
}  # fmt: skip
