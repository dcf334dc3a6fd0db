"""Tables of detection: false positives, power, variants, short texts, readings, and what it takes."""

from __future__ import annotations

from typing import Any

import everyday as everyday_texts
import numpy as np
from cost_tables import SUBJECTS
from result_files import as_table, per_cent, read_result, share, source, with_ends

from caw_lab.evaluation.metrics.accuracy import wilson


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
