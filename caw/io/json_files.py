"""JSON files, and files of JSON lines that may be compressed: scores.jsonl, or scores.jsonl.xz in its place.

xz (`lzma` of the standard library; `xz -d` undoes it) makes half of the published scores of what gzip does.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from caw.io.files import write_whole
from caw.io.inputs import lines_of, read_bounded, too_long

SUFFIX = ".xz"
MADE_BY = "caw evaluate run"
T = TypeVar("T")


def packed_path(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def is_there(path: Path) -> bool:
    """Whether a file of lines is there, plain or compressed."""
    return path.exists() or packed_path(path).exists()


def opened(path: Path) -> BinaryIO:
    """A file of lines to read, however it is kept; `path` names the plain file.

    Raises FileNotFoundError for neither, ValueError for both or for a compressed file that is not whole.
    """
    packed = packed_path(path)
    if not packed.exists():
        return open(path, "rb")
    if path.exists():
        raise ValueError(f"expected {path.name} or {packed.name} in {path.parent}, found both; remove the older one")
    lzma = _lzma(packed)
    try:
        return io.BytesIO(lzma.decompress(packed.read_bytes()))
    except (lzma.LZMAError, EOFError):
        raise ValueError(f"expected a whole xz file in {packed}, found something else; publish it again") from None


def compress(content: bytes) -> bytes:
    """As an .xz file; the same bytes for the same content and liblzma."""
    lzma = _lzma(None)
    packed: bytes = lzma.compress(content, preset=6 | lzma.PRESET_EXTREME)
    return packed


def _lzma(path: Path | None) -> Any:
    try:
        import lzma
    except ModuleNotFoundError as error:  # where Python was built without liblzma
        remedy = "install liblzma and build Python again" + (f", or run `xz -d {path}`" if path else "")
        raise ImportError(f"compressed scores need Python's lzma module, found none; {remedy}") from error
    return lzma


def read_lines(path: Path, made_by: str = MADE_BY, *, missing_ok: bool = False) -> list[dict[str, Any]]:
    """The objects of a file of lines, plain or compressed, which another process may be writing.

    A last line without its line end counts only if it is whole. Raises ValueError for any other line that holds no
    object (made_by: the command that writes such lines, for the message), and FileNotFoundError unless missing_ok.
    """
    found: list[dict[str, Any]] = []
    if missing_ok and not is_there(path):
        return found
    with opened(path) as file:
        for number, raw in enumerate(lines_of(file), 1):
            if raw is None:
                raise ValueError(f"{path}, line {number}: {too_long()}")
            try:
                value = json.loads(raw)
            except ValueError:
                if not raw.endswith(b"\n"):
                    break
                value = None
            if not isinstance(value, dict):
                raise ValueError(
                    f"{path}, line {number}: expected a line of `{made_by}`, found another; remove the line"
                )
            found.append(value)
    return found


def parse(kind: type[T], line: Mapping[str, Any], path: Path) -> T:
    """A dataclass from a line of `caw evaluate run`; fields that the class does not have are left out.

    Raises ValueError naming the fields that are missing.
    """
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    try:
        return kind(**{name: line[name] for name in names if name in line})
    except TypeError:
        missing = ", ".join(name for name in names if name not in line)
        raise ValueError(f"{path}: expected lines of `{MADE_BY}`, found one without {missing}; remove it") from None


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if there is no file. Raises ValueError for anything else in it."""
    try:
        value = json.loads(read_bounded(path))
    except FileNotFoundError:
        return None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object in {path}, found something else; remove the file")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    replace_file(path, (text + "\n").encode("utf-8"))


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, see `write_whole`; its folder is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
