"""The table of `bench_look_ahead.py`: what reading the next position is worth."""

from __future__ import annotations

from typing import Any

from result_files import as_table, read_result, source, with_ends

NAME = "look_ahead.json"
WINDOWS = {"11": "(1, 1)", "10": "(1, 0)", "00": "(0, 0)"}


def look_ahead() -> str:
    """AUROC of each window by labels of key segments, and what each position adds."""
    lines = []
    for row in read_result(NAME)["labels"]:
        found = row["all"]
        gains = [_with_ends(own) for own in (found["11-10"], row["agree"]["11-10"], found["10-00"])]
        lines.append((row["model"], row["documents"], *(f"{found[window][0]:.3f}" for window in WINDOWS), *gains))
    windows = [f"AUROC {name}" for name in WINDOWS.values()]
    header = ("model", "documents", *windows, "next adds", "the same where the model agrees", "previous adds")
    said = "Each document was held out once, in five folds; in brackets 95 % intervals over documents."
    return f"{as_table(header, lines)}\n\n{said} {source(NAME)}"


def look_ahead_texts() -> str:
    """What each window finds and keeps in whole texts, and how windows differ text by text."""
    found = read_result(NAME)["texts"]
    rows = {row["window"]: row for row in found["rows"]}
    lines = [
        (WINDOWS[window], rows[window]["texts"], with_ends(*rows[window]["found"]), with_ends(*rows[window]["kept"]),
         _with_ends(rows[window]["nats"]),
         *(_with_ends(own) if (own := rows["11"].get(f"{name} over {window}")) else "" for name in ("found", "kept")))
        for window in WINDOWS
    ]  # fmt: skip
    header = ("window", "texts", "found at 1 %", "answers of unmarked texts kept", "nats a token beyond unmarked",
              "(1, 1) finds more by", "(1, 1) keeps more by")  # fmt: skip
    return f"{as_table(header, lines)}\n\n{source(NAME)}"


def _with_ends(found: list[Any]) -> str:
    mean, low, high = found
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"
