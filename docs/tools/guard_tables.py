"""Tables of what a guard keeps, finds and costs (`bench_guard.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from result_files import as_table, per_cent, read_result, source, with_ends

GATHER = "python benchmarks/bench_guard.py gather runs/guard-*.jsonl"
GUARD_WAYS = {
    "unmarked": "unmarked", "guard": "guard", "alone": "`detectable_at` alone", "agreement": "`Agreement`",
    "votes": "four votes", "ceiling": "full strength, nothing kept", "target": "CAW with target",
    "fixed": "fixed strength",
}  # fmt: skip


def guarded_runs(
    what: str, *ways: str, name: str = "guard.json"
) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
    """The runs of one kind: each with its rows of these ways, and what was set beside the defaults.

    Without those that limit rollouts, the default limit included: they have a table of their own.
    """
    for run in read_result(name)["runs"]:
        if "rollouts" in json.loads(run["guard"]):
            continue
        options = ", ".join(f"{name} {value}" for name, value in json.loads(run["guard"]).items())
        options += run.get("note", "")
        for row in run["rows"] if run["what"] == what else ():
            if row["way"] in ways:
                yield run, row, options


def _keeps(run: dict[str, Any]) -> str | None:
    """What the guard of a run kept, by its name; None for JSON's fields."""
    by_kind = {"gsm8k": "results", "everyday": "content"}
    named: str | None = json.loads(run["guard"]).get("keeps", by_kind.get(run["what"]))
    return named


def guard(name: str = "guard.json") -> str:
    """Share of texts that are detected and keep their results, with a guard and in other ways, and what it costs."""
    lines = []
    for run, row, options in guarded_runs("gsm8k", *GUARD_WAYS, name=name):
        if row["texts"] != "all":
            continue
        options += f", edits {run['edits']:g}" if run["edits"] else ""
        setting = GUARD_WAYS[row["way"]] + (
            f", {options}".replace(", ,", ",") if options and row["way"] == "guard" else ""
        )
        lines.append((
            run["model"].split("-")[2].upper(), f"{run['level']:g}", run["batch"], setting, row["count"], row["keys"],
            *(with_ends(row[name], *row[f"{name}_ci"]) if name in row else "" for name in ("found", "both")),
            per_cent(row["same"], 0) if "same" in row else "", per_cent(row["right"]), per_cent(row["stands"], 0),
            f"{row['cost']:.1f}" if "cost" in row else "",
            f"{row['of_drafted']:.1f}" if "of_drafted" in row else "",
            f"{row['rollouts'][0]:.0f}" if row.get("rollouts") else "", f"{row['nats']:.2f}",
        ))  # fmt: skip
    header = (
        "model", "level", "batch", "setting", "texts", "keys", "detected", "detected and kept",
        "same graded answer", "right", "answer stands in the reasoning", "unmarked decodes", "of those with drafts",
        "rollouts", "nats per token",
    )  # fmt: skip
    return f"{as_table(header, lines)}\n\n{source(name, GATHER)}"


def guard_key() -> str:
    """The same by the key alone, content kept."""
    return guard("guard_key.json")


def guard_everyday() -> str:
    """What marks do to everyday texts: what they find and keep, nats, n-grams, likeness."""
    lines, seen = [], set[tuple[str, int, str]]()
    for run, row, _ in guarded_runs("everyday", *GUARD_WAYS):
        way = GUARD_WAYS[row["way"]] + (f", {_keeps(run)}" if row["way"] == "guard" else "")
        case = (run["model"], run["tokens"], way)
        if row["texts"] != "all" or case in seen:  # unmarked texts stand beside both guards
            continue
        seen.add(case)
        lines.append((
            run["model"].split(".Q")[0], run["tokens"], way, row["count"],
            *(with_ends(row[name], *row[f"{name}_ci"]) if name in row else "" for name in ("found", "both")),
            f"{row['nats']:.2f}", f"{row['judged']:.2f}", f"{row['like']:.2f}" if "like" in row else "",
            f"{row['distinct'][2]:.2f}", f"{row['cost']:.1f}" if "cost" in row else "",
        ))  # fmt: skip
    header = ("model", "tokens at most", "setting", "texts", "detected", "detected, same content", "nats per token",
              "under another model", "likeness", "distinct 4-grams", "unmarked decodes")  # fmt: skip
    return f"{as_table(header, sorted(lines, key=lambda line: line[:2]))}\n\n{source('guard.json', GATHER)}"


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
            lines.append((name, run["what"], f"{run['level']:g}", _keeps(run), run["null"]["texts"], *shares))
    header = ("model", "texts of", "level", "keeps", "texts", "p at most 0.01; minus unmarked, points", "0.1", "0.5")
    return f"{as_table(header, lines)}\n\n{source('guard.json', GATHER)}"


def _points(ends: list[float]) -> str:
    """A difference of shares and the ends of its interval, in points of a per cent."""
    value, low, high = (100 * each for each in ends)
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"
