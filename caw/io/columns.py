"""Columnar storage of a file's objects: similar numbers next to each other compress a tenth to a third better.

A text of JSON lines: {"fields": [the fields of lines of kind 0, of kind 1, ...]}, the kind of each line, then for each
field, in the order in which they first come, its values in the lines that have it. Every line and the order of its
fields come back as they were.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any


def small(value: Any) -> str:
    """JSON on one line, without spaces."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def to_columns(lines: Iterable[Mapping[str, Any]]) -> bytes:
    """Convert lines to columns. ValueError for what JSON and UTF-8 lack: NaN, infinity, half a surrogate pair."""
    kinds: dict[tuple[str, ...], int] = {}
    kind_of: list[int] = []
    columns: dict[str, list[Any]] = {}
    for line in lines:
        kind_of.append(kinds.setdefault(tuple(line), len(kinds)))
        for name, value in line.items():
            columns.setdefault(name, []).append(value)
    made = ({"fields": list(kinds)}, kind_of, *columns.values())
    return "".join(small(line) + "\n" for line in made).encode("utf-8")


def from_columns(content: bytes) -> list[dict[str, Any]]:
    """Return the lines. ValueError for anything that `to_columns` does not produce."""
    try:
        lines = _lines(*[json.loads(line) for line in content.splitlines()])
        same = to_columns(lines) == content
    except (ValueError, TypeError, LookupError, StopIteration, RecursionError):
        same = False
    if not same:
        raise ValueError("expected columns of `caw evaluate run --publish`, found something else; publish it again")
    return lines


def _lines(head: Any, kind_of: Any, *columns: Any) -> list[dict[str, Any]]:
    kinds = dict(enumerate(head["fields"]))
    names = dict.fromkeys(name for fields in kinds.values() for name in fields)
    left = {name: iter(values) for name, values in zip(names, columns, strict=True)}
    return [{name: next(left[name]) for name in kinds[kind]} for kind in kind_of]
