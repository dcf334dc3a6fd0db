"""Files of JSON lines, and JSON objects, that may be published by column and compressed: scores.jsonl, or
scores.columns.xz.

xz (`lzma` of the standard library; `xz -d` undoes it) makes half of the published scores of what gzip does; by column,
similar numbers next to each other, they are a tenth to a seventh smaller than line by line, and answers a third.

Columns are a text of JSON lines: {"fields": [the fields of lines of kind 0, of kind 1, ...]}, the kind of each line,
then for each field, in the order in which they first come, its values in the lines that have it. Every line and the
order of its fields come back as they were.
"""

import io
import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from caw.io import json_files
from caw.io.json_files import replace_file

SUFFIX, COLUMNS = ".xz", ".columns"
MADE_BY = "caw evaluate run"
T = TypeVar("T")


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


def forms_of(path: Path) -> tuple[Path, ...]:
    """Return the names that the lines of the plain file `path` may have: its own, what `xz -d` leaves, the packed."""
    return path, path.with_suffix(COLUMNS), path.with_suffix(COLUMNS + SUFFIX)


def packed_json(path: Path) -> Path:
    """Return the published, compressed form of the plain file `path` of one object."""
    return path.with_name(path.name + SUFFIX)


def _only(forms: Sequence[Path], what: str) -> Path:
    """Return the existing form, the first if none exists. ValueError for several: it is unclear which counts."""
    found = [form for form in forms if form.exists()]
    if len(found) > 1:
        names = " and ".join(form.name for form in found)
        raise ValueError(f"expected one file of {what} in {forms[0].parent}, found {names}; remove the older")
    return found[0] if found else forms[0]


def opened(path: Path) -> BinaryIO:
    """Open a file to read, decompressed by its name. FileNotFoundError; ValueError for a file that is not whole."""
    if path.suffix != SUFFIX:
        return open(path, "rb")
    try:
        return io.BytesIO(lzma.decompress(path.read_bytes()))
    except (lzma.LZMAError, EOFError):
        raise ValueError(f"expected a whole xz file in {path}, found something else; publish it again") from None


def compress(content: bytes) -> bytes:
    """Return an .xz file; the same bytes for the same content and liblzma."""
    # pb=0: letters and digits have no period of four bytes
    filters: list[dict[str, Any]] = [{"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME, "pb": 0}]
    return lzma.compress(content, filters=filters)


def read_lines(path: Path, *, missing_ok: bool = False) -> list[dict[str, Any]]:
    """Return the objects of a file of lines in any form (`forms_of`); a plain one as `json_files.read_lines` does."""
    kept = _only(forms_of(path), "these lines")
    if kept == path:
        return json_files.read_lines(path, MADE_BY, missing_ok=missing_ok)
    with opened(kept) as file:
        try:
            return from_columns(file.read())
        except ValueError as error:
            raise ValueError(f"{kept}: {error}") from None


def parse(kind: type[T], line: Mapping[str, Any], path: Path) -> T:
    """Build a dataclass from a line of `caw evaluate run`, without unknown fields. ValueError names missing ones."""
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    try:
        return kind(**{name: line[name] for name in names if name in line})
    except TypeError:
        missing = ", ".join(name for name in names if name not in line)
        raise ValueError(f"{path}: expected lines of `{MADE_BY}`, found one without {missing}; remove it") from None


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file or its compressed form, None for neither; ValueError for both and for no object."""
    kept = _only((path, packed_json(path)), "this object")
    if kept == path:
        return json_files.read_json(path)
    with opened(kept) as file:
        return json_files.as_object(file.read(), kept)


def write_lists(path: Path, value: Mapping[str, Any], *, packed: bool = False) -> None:
    """Write an object without indents, with a line for each entry of its lists: small, with readable diffs.

    packed: compressed, a tenth of it. The file's other form is removed, as readers refuse both.
    """
    text = ",\n".join(f"{small(name)}:{_entries(entry)}" for name, entry in value.items())
    content = f"{{{text}}}\n".encode()
    chosen, other = (packed_json(path), path) if packed else (path, packed_json(path))
    replace_file(chosen, compress(content) if packed else content)
    other.unlink(missing_ok=True)


def _entries(value: Any) -> str:
    return "[\n" + ",\n".join(map(small, value)) + "\n]" if isinstance(value, list) and value else small(value)
