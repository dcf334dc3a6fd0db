"""Tables of speed: servers, the decode loop, products, operators."""

from __future__ import annotations

from typing import Any

from result_files import as_table, middle, per_cent, read_result, share, source


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
    """Those that the side was told to use; vLLM one before it could be told."""
    count = row.get("vllm_threads", 1) if row["side"].startswith("vLLM") else row["threads"]
    return f" ({count} thread{'s' * (count > 1)})"


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
