"""JSON files, and files of JSON lines."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caw.io.files import write_whole
from caw.io.inputs import lines_of, read_bounded, too_long
from caw.io.show import shown


def read_lines(path: Path, made_by: str, *, missing_ok: bool = False) -> list[dict[str, Any]]:
    """Return the objects of a file of lines, which another process may be writing.

    A last line without its line end counts only if it is whole. Raises ValueError for any other line that holds no
    object (made_by: the command that writes such lines, for the message), and FileNotFoundError unless missing_ok.
    """
    found: list[dict[str, Any]] = []
    if missing_ok and not path.exists():
        return found
    with open(path, "rb") as file:
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


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; None for no file, ValueError for anything but an object."""
    try:
        return as_object(read_bounded(path), path)
    except FileNotFoundError:
        return None


def as_object(content: bytes, path: Path) -> dict[str, Any]:
    """Return the object in the content of a file. ValueError for anything else."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object in {path}, found something else; remove the file")
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


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, see `write_whole`; its folder is created if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
