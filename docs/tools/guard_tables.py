"""Tables of what a guard keeps, finds and costs (`bench_guard.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from result_files import as_table, per_cent, read_result, source, with_ends

GATHER = "python benchmarks/bench_guard.py gather runs/guard-*.jsonl"
GUARD_WAYS = {"unmarked": "unmarked", "guard": "guard", "alone": "`detectable_at` alone"}
LENGTHS = {"all": "all", "long": "90 tokens and more"}


def _rows(what: str) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
    """The runs of one kind: each with its rows, and what was set beside the defaults."""
    for run in read_result("guard.json")["runs"]:
        options = "".join(f", {name} {value}" for name, value in json.loads(run["guard"]).items())
        options += f", edits {run['edits']:g}" if run["edits"] else ""
        for row in run["rows"] if run["what"] == what else ():
            yield run, row, GUARD_WAYS[row["way"]] + (options if row["way"] == "guard" else "")


def guard() -> str:
    """Share of answers that are detected and keep their content, and what it costs."""
    lines = [
        (
            run["model"].split("-")[2].upper(), f"{run['level']:g}", setting, LENGTHS[row["texts"]], row["count"],
            row["keys"],
            *(with_ends(row[name], *row[f"{name}_ci"]) if name in row else "" for name in ("found", "both")),
            per_cent(row["same"], 0) if "same" in row else "", per_cent(row["stands"], 0),
            *(f"{row[name]:.1f}" if name in row else "" for name in ("cost", "of_drafted")),
            f"{row['rollouts'][0]:.0f}" if row.get("rollouts") else "", f"{row['nats']:.2f}",
        )
        for run, row, setting in _rows("gsm8k")
        if row["texts"] in LENGTHS
    ]  # fmt: skip
    header = (
        "model", "level", "setting", "answers of", "texts", "keys", "detected", "detected and kept",
        "same graded answer", "answer stands in the reasoning", "unmarked decodes", "of those with drafts", "rollouts",
        "nats per token",
    )  # fmt: skip
    return f"{as_table(header, lines)}\n\n{source('guard.json', GATHER)}"


def guard_everyday() -> str:
    """What marks do to everyday texts: what they find and keep, nats, n-grams, likeness."""
    lines = [
        (
            run["model"].split(".Q")[0], setting, LENGTHS[row["texts"]], row["count"],
            *(with_ends(row[name], *row[f"{name}_ci"]) if name in row else "" for name in ("found", "both")),
            f"{row['nats']:.2f}", f"{row['judged']:.2f}", f"{row['distinct'][2]:.2f}",
            f"{row['cost']:.1f}" if "cost" in row else "", f"{row['rollouts'][0]:.0f}" if row.get("rollouts") else "",
        )
        for run, row, setting in _rows("everyday")
        if row["texts"] in LENGTHS
    ]  # fmt: skip
    header = ("model", "setting", "texts of", "texts", "detected", "detected, same content", "nats per token",
              "under another model", "distinct 4-grams", "unmarked decodes", "rollouts")  # fmt: skip
    return f"{as_table(header, lines)}\n\n{source('guard.json', GATHER)}"


def guard_wording() -> str:
    """Grammar and nats of guarded texts and their unmarked ones."""
    lines = [
        (
            row["what"], row["texts"], row["model"].split(".Q")[0], row["reworded"], row["dear"],
            *(f"{linked} of {count}" for linked, count in zip(row["linked"], row["sentences"], strict=True)),
            *(f"{nats:.2f}" for nats in row["nats"]),
        )
        for row in read_result("guard_wording.json")["rows"]
    ]  # fmt: skip
    header = ("texts of", "changed texts", "read by", "reworded sentences", "that lose more than 4 nats",
              "parsed whole, unmarked", "marked", "nats per token, unmarked", "marked")  # fmt: skip
    command = "python benchmarks/bench_wording.py runs/guard-*.jsonl --model MODEL.gguf"
    return f"{as_table(header, lines)}\n\n{source('guard_wording.json', command)}"


def guard_streams() -> str:
    """What streams that are guarded by windows find, keep and cost, beside the same guard of whole texts."""
    lines = [
        (
            row["model"].split(".Q")[0], row["what"], row["window"] or "whole text", row["texts"], row["both"],
            row.get("same", ""), *(f"{row[name]:.2f}" for name in ("first", "cost")),
            *(f"{row[name]:.1f}" for name in ("windows", "changes", "rollouts")),
        )
        for row in read_result("guard_streams.json")["rows"]
    ]  # fmt: skip
    header = ("model", "texts of", "window", "texts", "detected and kept", "same answer", "decodes to the first words",
              "in all", "windows", "changes", "rollouts")  # fmt: skip
    command = "python benchmarks/bench_streams.py gather runs/streams*.jsonl"
    return f"{as_table(header, lines)}\n\n{source('guard_streams.json', command)}"


def guard_null() -> str:
    """Shares of p-values under other keys: of guarded texts, minus those of the unmarked ones."""
    lines = []
    for run in read_result("guard.json")["runs"]:
        if "null" in run:
            pairs = zip(run["null"]["guard"], run["null"]["difference"], strict=True)
            shares = [f"{with_ends(*guarded, digits=1)}; {_points(change)}" for guarded, change in pairs]
            name = run["model"].split(".Q")[0]
            lines.append((name, run["what"], f"{run['level']:g}", run["null"]["texts"], *shares))
    header = ("model", "texts of", "level", "texts", "p at most 0.01; minus unmarked, points", "0.1", "0.5")
    return f"{as_table(header, lines)}\n\n{source('guard.json', GATHER)}"


def _points(ends: list[float]) -> str:
    """A difference of shares and the ends of its interval, in points of a per cent."""
    value, low, high = (100 * each for each in ends)
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"
