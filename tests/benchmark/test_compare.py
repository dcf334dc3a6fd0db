"""What counts as a change: made-up runs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from caw.benchmark.cases import KIND
from caw.benchmark.compare import compare, read


def summary(median: float, spread: float, n: int = 10) -> dict[str, float]:
    return {"median": median, "low": median - spread / 2, "high": median + spread / 2, "n": n}


def made_up(ratio: float = 1.1, ms: float = 20.0, spread: float = 0.02, peak: float = 1.01, n: int = 10) -> Any:
    case = {"batch": 1, "prompt": 128, "tokens": 64}
    figures = {"ms_per_token": summary(ms, ms * spread, n), "first_token_ms": summary(90, 1, n), "peak_bytes": 1}
    rows = [
        {"mode": "plain", **case, **figures, "ratio": summary(1, 0), "first_ratio": summary(1, 0), "peak_ratio": 1.0},
        {"mode": "kgw+caw", **case, **figures, "ratio": summary(ratio, spread, n), "first_ratio": summary(1, 0.01, n),
         "peak_ratio": peak},
    ]  # fmt: skip
    arguments = {"model": "m", "shapes": None, "dtype": "float32"}
    return {"kind": KIND, "arguments": arguments, "machine": {"cpu": "x", "load": 0.1}, "rows": rows, "checks": []}


def flagged(before: Any, after: Any) -> dict[tuple[str, str], bool]:
    return {(c.row.split(",")[0], c.figure): c.worse for c in compare(before, after) if c.beyond_noise}


def test_the_same_run_changed_nothing() -> None:
    assert len(compare(made_up(), made_up())) == 2 + 4 + 1 and flagged(made_up(), made_up()) == {}


def test_changes_are_flagged_by_their_noise() -> None:
    assert flagged(made_up(), made_up(ratio=1.2)) == {("kgw+caw", "ratio"): True}
    assert flagged(made_up(ratio=1.2), made_up()) == {("kgw+caw", "ratio"): False}
    assert flagged(made_up(spread=0.5), made_up(ratio=1.2, spread=0.5)) == {}
    # sure, but too small to matter
    assert flagged(made_up(spread=0.0), made_up(ratio=1.11, spread=0.0)) == {}
    # too few rounds to know their noise
    assert flagged(made_up(spread=0.0, n=2), made_up(ratio=1.3, spread=0.0, n=2)) == {}
    assert flagged(made_up(), made_up(peak=1.05)) == {("kgw+caw", "peak_ratio"): True}


def test_the_threshold_is_three_standard_errors() -> None:
    # quartiles 0.1 apart, 10 rounds: 1.253 / 1.349 * 0.1 / sqrt(10) each, together 0.0415, times 3: 0.1246
    for change, expected in ((0.12, False), (0.13, True)):
        found = flagged(made_up(ratio=1.0, spread=0.1), made_up(ratio=1.0 + change, spread=0.1))
        assert (("kgw+caw", "ratio") in found) == expected


def test_milliseconds_compare_on_one_machine_only() -> None:
    slower = made_up(ms=40.0)
    assert {f for _, f in flagged(made_up(), slower)} == {"ms_per_token"}
    busy, other = copy.deepcopy(slower), copy.deepcopy(slower)
    busy["machine"]["load"] = 9.0
    other["machine"]["cpu"] = "y"
    assert flagged(made_up(), busy) and not flagged(made_up(), other)


def test_rows_meet_by_case() -> None:
    other = made_up(ratio=9.0)
    for row in other["rows"]:
        row["batch"] = 8
    with pytest.raises(ValueError, match="in common, found none"):
        compare(made_up(), other)
    other["arguments"]["dtype"] = "bfloat16"
    broken = made_up()
    broken["rows"][1] = {
        **{k: broken["rows"][1][k] for k in ("mode", "batch", "prompt", "tokens")},
        "error": "",
    }
    assert {c.row.split(",")[0] for c in compare(made_up(), broken)} == {"plain"}


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, message in (("{", "must be JSON"), ("[]", "is none"), ('{"rows": []}', "is none")):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read(path)
    path.write_text(json.dumps(made_up()))
    assert read(path) == made_up()
