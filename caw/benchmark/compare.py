"""Compare two benchmark runs: figures that changed by more than their noise."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caw.benchmark.cases import KIND
from caw.io.inputs import read_bounded

LEAST = 0.02  # smaller changes are not reported, however certain
STANDARD_ERRORS = 3.0
# of a median: 1.253 sigma / sqrt(n), and a normal distribution's quartiles lie 1.349 sigma apart
MEDIAN_ERROR = 1.253 / 1.349
ALONE = 0.1  # relative noise assumed for a single sample, which has no spread
CASE = ("mode", "batch", "prompt", "tokens")
# ratios to plain decoding in the same run compare across machines, milliseconds only on one
RELATIVE, ABSOLUTE = ("ratio", "first_ratio"), ("ms_per_token", "first_token_ms")


@dataclass(frozen=True)
class Change:
    """One figure of one row. factor: after / before; more is worse, for all of them."""

    row: str
    figure: str
    before: float
    after: float
    beyond_noise: bool

    @property
    def factor(self) -> float:
        return self.after / self.before if self.before else math.inf

    @property
    def worse(self) -> bool:
        return self.beyond_noise and self.after > self.before


def read(path: str | Path) -> dict[str, Any]:
    """Read a saved run. ValueError if the file has none."""
    try:
        found = json.loads(read_bounded(path))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"a saved run must be JSON, {path} is not ({error}); give a file of --json") from error
    if not isinstance(found, dict) or found.get("kind") != KIND or not isinstance(found.get("rows"), list):
        raise ValueError(f"expected a file of `caw benchmark --json`, {path} is none; give another")
    return found


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Return every figure that both runs have, in the order of the later run.

    Raises ValueError if they have no case in common.
    """
    same = _without_load(before) == _without_load(after)
    old = {_key(before, row): row for row in before["rows"] if "error" not in row}
    pairs = [(old[_key(after, r)], r) for r in after["rows"] if "error" not in r and _key(after, r) in old]
    if not pairs:
        raise ValueError(
            "expected runs with a mode, batch, prompt, model and dtype in common, found none; measure alike"
        )
    changes = []
    for earlier, later in pairs:
        name = f"{later['mode']}, batch {later['batch']}, prompt {later['prompt']}"
        for figure in (*RELATIVE, *(ABSOLUTE if same else ())):
            if later["mode"] == "plain" and figure in RELATIVE:
                continue  # 1 by definition
            changes.append(_change(name, figure, earlier[figure], later[figure]))
        if "peak_ratio" in earlier and "peak_ratio" in later and later["mode"] != "plain":
            a, b = earlier["peak_ratio"], later["peak_ratio"]
            changes.append(Change(name, "peak_ratio", a, b, abs(b / a - 1) > LEAST))
    return changes


def _change(name: str, figure: str, before: Mapping[str, float], after: Mapping[str, float]) -> Change:
    a, b = before["median"], after["median"]
    error = math.hypot(_standard_error(before), _standard_error(after))
    return Change(name, figure, a, b, abs(b - a) > max(STANDARD_ERRORS * error, LEAST * a))


def _standard_error(summary: Mapping[str, float]) -> float:
    if summary["n"] < 3:
        return ALONE * summary["median"]
    return MEDIAN_ERROR * (summary["high"] - summary["low"]) / math.sqrt(summary["n"])


def _key(run: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[Any, ...]:
    arguments = run["arguments"]
    model = arguments["shapes"] or arguments["model"], arguments["dtype"], arguments.get("weights")
    return (*model, *(row[name] for name in CASE))


def _without_load(run: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in run["machine"].items() if name != "load"}
