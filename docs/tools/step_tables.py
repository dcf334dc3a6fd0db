"""Tables of a step on a CPU: its parts beside their floor, SynthID's over the race's, and what looking ahead costs."""

from __future__ import annotations

from typing import Any

from result_files import as_table, read_result, source

WAYS = {"greedy": "greedy", "T .7, top-p .95": "T 0.7, top-p 0.95"}
MARKS = {"plain": "unmarked", "kgw+caw": "KGW under CAW"}


def step_parts() -> str:
    """Milliseconds of a step by what it works on, and the least that its bytes take.

    dtype and threads have columns if there are several.
    """
    found = [{"threads": 1, **row} for row in read_result("parts.json")["rows"]]
    more = [name for name in ("dtype", "threads") if len({row[name] for row in found}) > 1]
    parts = list(found[0]["parts"])
    lines = []
    for row in found:
        mark, _, way = row["case"].partition(", ")
        name = f"{MARKS[mark]}, {WAYS[way]}" if way else "*floor*"
        cells = [f"{row['parts'][part]:.2f}" if part in row["parts"] else "" for part in parts]
        lines.append((*(row[each] for each in more), row["batch"], name, *cells))
    table = as_table((*more, "batch", "step", *parts), lines)
    return f"{table}\n\n{_over_batch_1(found)}\n\n{source('parts.json')}"


def _over_batch_1(found: list[dict[str, Any]]) -> str:
    """What a full step takes over that of one text."""
    took = {(r["dtype"], r["threads"], r["batch"]): r["parts"]["all"] for r in found if r["case"] == "plain, greedy"}
    said = []
    for dtype, threads in dict.fromkeys((dtype, threads) for dtype, threads, _ in took):
        times = {batch: took[d, n, batch] for d, n, batch in took if (d, n) == (dtype, threads) and batch > 1}
        one = took[dtype, threads, 1]
        each = ", ".join(f"{ms / one:.2f} at batch {batch}" for batch, ms in times.items())
        said.append(f"{each} ({dtype}, {threads} thread{'s' * (threads > 1)})")
    return f"An unmarked greedy step over that of batch 1: {'; '.join(said)}."


def synthid_steps() -> str:
    """Time that a token marked by SynthID takes, over one marked by the race."""
    found = {(r["batch"], r["case"]): r for r in read_result("synthid_steps.json")["rows"]}
    batches = list(dict.fromkeys(batch for batch, _ in found))
    lines = []
    for mark, name in (("synthid", "full strength"), ("synthid+caw", "under CAW")):
        for way, said in WAYS.items():
            rows = [found[batch, f"{mark}, {way}"]["over_race"] for batch in batches]
            lines.append((f"{said}, {name}", *("{:.2f} ({:.2f} to {:.2f})".format(*row) for row in rows)))
    header = ("SynthID over the race", *(f"batch {batch}" for batch in batches))
    return f"{as_table(header, lines)}\n\n{source('synthid_steps.json')}"


def no_look_ahead() -> str:
    """Time of a marked greedy step over an unmarked one, with the look-ahead and without."""
    found = {(r["dtype"], r["batch"], r["case"]): r["ratio"] for r in read_result("no_look_ahead.json")["rows"]}
    names = {"kgw+caw": "KGW under CAW", "kgw+window00": "KGW under CAW, no look-ahead", "exp+caw": "EXP under CAW",
             "exp+window00": "EXP under CAW, no look-ahead"}  # fmt: skip
    cases = list(dict.fromkeys((dtype, batch) for dtype, batch, _ in found))
    lines = [
        (name, *("{:.2f} ({:.2f} to {:.2f})".format(*found[dtype, batch, f"{mark}, greedy"]) for dtype, batch in cases))
        for mark, name in names.items()
    ]
    header = ("step over the unmarked one", *(f"{dtype}, batch {batch}" for dtype, batch in cases))
    return f"{as_table(header, lines)}\n\n{source('no_look_ahead.json')}"
