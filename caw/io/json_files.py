"""JSON files, and files of JSON lines, which may be stored by column and compressed: scores.jsonl, or
scores.columns.xz.

xz (`lzma` of the standard library; `xz -d` undoes it) makes half of the published scores of what gzip does; by column
they are a tenth to a seventh smaller than line by line, and answers a third. Older copies have compressed lines
(scores.jsonl.xz).
"""

import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from caw.io.columns import from_columns, small
from caw.io.files import write_whole
from caw.io.inputs import lines_of, read_bounded, too_long
from caw.io.show import shown

SUFFIX, COLUMNS = ".xz", ".columns"
MADE_BY = "caw evaluate run"
T = TypeVar("T")


def packed_path(path: Path) -> Path:
    """Return the published form of the plain file `path`: by column, compressed."""
    return path.with_suffix(COLUMNS + SUFFIX)


def forms_of(path: Path) -> tuple[Path, ...]:
    """Return every name under which the lines of the plain file `path` may be stored, that one first."""
    columns = path.with_suffix(COLUMNS)  # what `xz -d` leaves
    return path, path.with_name(path.name + SUFFIX), columns, packed_path(path)


def is_there(path: Path) -> bool:
    """Return whether a file of lines exists in any form."""
    return any(form.exists() for form in forms_of(path))


def kept_at(path: Path) -> Path:
    """Return the file with the lines of `path`, that one if there is none. ValueError for several."""
    return _only(forms_of(path), "these lines")


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
    lzma = _lzma(path)
    try:
        return io.BytesIO(lzma.decompress(path.read_bytes()))
    except (lzma.LZMAError, EOFError):
        raise ValueError(f"expected a whole xz file in {path}, found something else; publish it again") from None


def compress(content: bytes) -> bytes:
    """Return an .xz file; the same bytes for the same content and liblzma."""
    lzma = _lzma(None)
    # pb=0: letters and digits have no period of four bytes
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME, "pb": 0}]
    packed: bytes = lzma.compress(content, filters=filters)
    return packed


def _lzma(path: Path | None) -> Any:
    try:
        import lzma
    except ModuleNotFoundError as error:  # where Python was built without liblzma
        remedy = "install liblzma and build Python again" + (f", or run `xz -d {path}`" if path else "")
        raise ImportError(f"compressed scores need Python's lzma module, found none; {remedy}") from error
    return lzma


def read_lines(path: Path, made_by: str = MADE_BY, *, missing_ok: bool = False) -> list[dict[str, Any]]:
    """Return the objects of a file of lines in any form (`forms_of`), which another process may be writing.

    A last line without its line end counts only if it is whole. Raises ValueError for any other line that holds no
    object (made_by: the command that writes such lines, for the message), and FileNotFoundError unless missing_ok.
    """
    found: list[dict[str, Any]] = []
    if missing_ok and not is_there(path):
        return found
    with opened(kept := kept_at(path)) as file:
        if kept in forms_of(path)[2:]:
            return _by_column(kept, file.read())
        for number, raw in enumerate(lines_of(file), 1):
            if raw is None:
                raise ValueError(f"{path}, line {number}: {too_long()}")
            try:
                value = json.loads(raw)
            except (ValueError, RecursionError):
                if not raw.endswith(b"\n"):
                    break
                value = None
            if not isinstance(value, dict):
                raise ValueError(
                    f"{path}, line {number}: expected a line of `{made_by}`, found another; remove the line"
                )
            found.append(value)
    return found


def _by_column(path: Path, content: bytes) -> list[dict[str, Any]]:
    try:
        return from_columns(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse(kind: type[T], line: Mapping[str, Any], path: Path) -> T:
    """Build a dataclass from a line of `caw evaluate run`, without unknown fields. ValueError names missing ones."""
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    try:
        return kind(**{name: line[name] for name in names if name in line})
    except TypeError:
        missing = ", ".join(name for name in names if name not in line)
        raise ValueError(f"{path}: expected lines of `{MADE_BY}`, found one without {missing}; remove it") from None


def packed_json(path: Path) -> Path:
    """Return the published, compressed form of the plain file `path`."""
    return path.with_name(path.name + SUFFIX)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file or its compressed form; None if there is neither.

    Raises ValueError for both, for a compressed file that is not whole and for anything but an object.
    """
    kept = _only((path, packed_json(path)), "this object")
    try:
        content = read_bounded(path) if kept == path else opened(kept).read()
    except FileNotFoundError:
        return None
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object in {kept}, found something else; remove the file")
    return value


def read_settings(path: Path, what: str, remedy: str) -> dict[str, Any]:
    """Return the object in a person's file. ValueError, which ends with `remedy`, says what is wrong and where."""
    try:
        value = json.loads(read_bounded(path), object_pairs_hook=_once)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        found = "other bytes than UTF-8" if isinstance(error, UnicodeDecodeError) else "too many levels"
        if isinstance(error, json.JSONDecodeError):
            found = f"{error.msg.removesuffix(' at').lower()} at line {error.lineno}, column {error.colno}"
        raise ValueError(f"expected JSON in {path}, found {found}; {remedy}") from None
    except FileNotFoundError:
        raise ValueError(f"expected {what} at {path}, found none; {remedy}") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object in {path}, found {type(value).__name__}; {remedy}")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise ValueError(f"each name must occur once, found {shown(name)} twice in one object; remove one")
    return dict(pairs)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    replace_file(path, (text + "\n").encode("utf-8"))


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


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, see `write_whole`; its folder is created if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
