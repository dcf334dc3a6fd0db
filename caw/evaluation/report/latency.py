"""What watermarking costs in time and memory, read from benchmark files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caw.io.json_files import read_json


@dataclass(frozen=True)
class Latency:
    """One way to generate.

    case: the file, and what else all the ways it is compared with share. variant: its name. ratio: time over that of
    plain decoding; low, high: its spread. memory: peak over that of plain decoding, None if not measured. speed: tokens
    per second, None if not measured. kind: "none", "fixed" or "capacity"; gives its colour.
    """

    case: str
    model: str
    batch: int
    dtype: str
    variant: str
    ratio: float
    low: float
    high: float
    memory: float | None = None
    speed: float | None = None

    @property
    def kind(self) -> str:
        low = self.variant.lower()
        if "caw" in low:
            return "capacity"
        return "fixed" if any(mark in low for mark in ("kgw", "exp", "unigram", "synthid", "markllm")) else "none"


def read_latency(folder: str | Path | None) -> list[Latency]:
    """Every row with a ratio in a folder's JSON files, in order of their names; [] for no folder.

    Other files and rows are ignored. Raises FileNotFoundError if the folder does not exist.
    """
    if folder is None:
        return []
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"--benchmarks must be a folder of benchmark results, found none at {folder}; name one")
    return [row for path in sorted(Path(folder).glob("*.json")) for row in _rows(path)]


def _rows(path: Path) -> Iterator[Latency]:
    content = read_json(path) or {}
    rows, setup = content.get("rows"), content.get("arguments") or {}
    if not isinstance(rows, list):
        return
    model, dtype = str(setup.get("shapes") or setup.get("model") or "?"), str(setup.get("dtype", "?"))
    for row in rows:
        ratio = row.get("ratio") if isinstance(row, dict) else None
        name = row.get("variant") or row.get("mode") if isinstance(row, dict) else None
        if ratio is None or not isinstance(name, str):
            continue
        if isinstance(ratio, dict):  # of `caw benchmark`
            yield Latency(
                f"{path.stem}, batch {row['batch']}, prompt {row['prompt']}", model, row["batch"], dtype,
                name if row.get("slots") is None else f"{name} C={row['slots']}",
                ratio["median"], ratio["low"], ratio["high"], row.get("peak_ratio"),
                row.get("tokens_per_second"),
            )  # fmt: skip
        elif "variant" in row:
            yield Latency(
                path.stem, model, _batch(setup), dtype, name, ratio=ratio, low=row.get("p20", ratio),
                high=row.get("p80", ratio), speed=row.get("speed"),
            )  # fmt: skip


def _batch(setup: dict[str, Any]) -> int:
    batch = setup.get("batch", 1)
    return batch if isinstance(batch, int) else 1
