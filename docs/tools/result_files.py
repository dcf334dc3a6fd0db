"""Result files by name, the commands that made them, and the form of a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from caw_lab.evaluation.packed_files import opened, packed_json

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
sys.path.append(str(ROOT / "benchmarks"))  # tables are made by what wrote the results


@lru_cache
def read_result(name: str) -> Any:
    with opened(_kept(name)) as file:
        return json.load(file)


def _kept(name: str) -> Path:
    """The file of a result, compressed or not."""
    path = RESULTS / name
    return path if path.exists() else packed_json(path)


def source(name: str, command: str = "") -> str:
    """The file behind a table, and its command: the one that the file names, or this one."""
    found = read_result(name)
    command = (found.get("command") if isinstance(found, dict) else None) or command
    file = f"`benchmarks/results/{_kept(name).relative_to(RESULTS)}`"
    return f"*From {file}" + (f", made by `{command}`.*" if command else ".*")


def as_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def share(value: float) -> str:
    """A share in per cent with two digits that count."""
    return f"{float(f'{100 * value:.2g}'):g} %" if value else "0"


def per_cent(value: float, digits: int = 1) -> str:
    """A share in per cent with so many digits behind the point."""
    return f"{100 * value:.{digits}f} %"


def with_ends(value: float, low: float, high: float, digits: int = 0) -> str:
    """A share in per cent and the ends of its interval, such as "62 % (47 - 76)"."""
    return f"{per_cent(value, digits)} ({100 * low:.{digits}f} - {100 * high:.{digits}f})"
