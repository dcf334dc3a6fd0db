"""The tables of `bench_look_ahead.py`: what reading the next position is worth, by labels and in whole texts."""

from __future__ import annotations

from typing import Any

from result_files import as_table, read_result, source

NAME = "look_ahead.json"
WINDOWS = {"11": "(1, 1)", "10": "(1, 0)", "00": "(0, 0)"}


def look_ahead() -> str:
    """AUROC of each window on four models, and what each position adds."""
    lines = []
    for row in read_result(NAME)["labels"]:
        found = row["all"]
        gains = [_with_ends(found[pair]) for pair in ("11-10", "10-00")]
        lines.append((row["model"], row["documents"], *(f"{found[window][0]:.3f}" for window in WINDOWS), *gains))
    header = ("model", "documents", *(f"AUROC {name}" for name in WINDOWS.values()), "next adds", "previous adds")
    said = "Each document was held out once, in five folds; in brackets 95 % intervals over documents."
    return f"{as_table(header, lines)}\n\n{said} {source(NAME)}"


def look_ahead_texts() -> str:
    """Answers kept, texts detected and nats of each window, and paired differences from the widest."""
    found = read_result(NAME)["texts"]
    rows = {row["window"]: row for row in found["rows"]}
    lines = [
        (name, _per_cent(rows[window]["kept"]), _per_cent(rows[window]["found"]), _with_ends(rows[window]["nats"]))
        for window, name in WINDOWS.items()
    ]
    lines += [
        (f"(1, 1) over {WINDOWS[other]}", _per_cent(rows["11"][f"kept over {other}"]),
         _per_cent(rows["11"][f"found over {other}"]), _with_ends(rows["11"][f"nats over {other}"]))
        for other in ("10", "00")
    ]  # fmt: skip
    header = ("window", "answers kept, %", "detected, %", "more nats per token than unmarked")
    said = (
        f"{found['model']}, {found['questions']} questions, of which it answers {100 * found['right']:.0f} % right "
        f"unmarked; target {found['level']:g}. In brackets 95 % intervals."
    )
    return f"{as_table(header, lines)}\n\n{said} {source(NAME)}"


def _with_ends(found: list[Any]) -> str:
    mean, low, high = found
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"


def _per_cent(found: list[Any]) -> str:
    mean, low, high = (100 * number for number in found)
    return f"{mean:.0f} ({low:.0f} to {high:.0f})"
