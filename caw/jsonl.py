"""JSONL in and out: one object a line, bad lines named by number, output that survives a kill.

Lines end in "\n" alone, are counted from 1, and blank ones are skipped but counted. A row's id is its field "id"
(text or integer) or else its line number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RowId = str | int
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LINE_START = b'{"id": '  # how every line of `caw generate` begins


@dataclass(frozen=True)
class Row:
    """One good line: its number, its id, and the object it holds."""

    number: int
    id: RowId
    value: dict[str, Any]


@dataclass(frozen=True)
class BadLine:
    """One line that cannot be used, and why: expected, found, remedy."""

    number: int
    message: str


def read_rows(lines: Iterable[bytes]) -> Iterator[Row | BadLine]:
    """Rows and bad lines, in order, of lines as a binary file yields them. Ids are unique: a repeated one is bad."""
    seen: dict[RowId, int] = {}
    for number, raw in enumerate(lines, 1):
        if number == 1:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
        if not raw.strip():
            continue
        row = _parse(number, raw)
        if isinstance(row, Row) and row.id in seen:
            row = BadLine(number, f"id {row.id!r} must be used once, line {seen[row.id]} has it already; change one")
        if isinstance(row, Row):
            seen[row.id] = number
        yield row


def _parse(number: int, raw: bytes) -> Row | BadLine:
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadLine(number, f"expected UTF-8 text, found byte 0x{raw[error.start]:02x}; convert the file to UTF-8")
    except (ValueError, RecursionError) as error:
        reason = str(error).split(":")[0].lower()
        return BadLine(
            number, f"expected one JSON object, found something else ({reason}); write the object on one line"
        )
    if not isinstance(value, dict):
        return BadLine(number, f'expected a JSON object, found {_kind(value)}; write {{"prompt": "..."}}')
    row_id = value.get("id", number)
    if isinstance(row_id, bool) or not isinstance(row_id, (str, int)):
        return BadLine(number, f"id must be text or an integer, found {_kind(row_id)}; change it or leave it out")
    return Row(number, row_id, value)


def text_field(value: dict[str, Any], name: str) -> str:
    """The text in field `name`.

    Raises ValueError if it is missing, no text, or holds half of a surrogate pair, which no tokenizer reads.
    """
    if name not in value:
        found = ", ".join(sorted(value)) or "none"
        raise ValueError(f"expected a field {name!r}, found fields {found}; add it, or name another with --field")
    text = value[name]
    if not isinstance(text, str):
        raise ValueError(f"{name} must be text, found {_kind(text)}; put it in quotes")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{name} must be valid Unicode, found half of a surrogate pair; repair the text") from None
    return text


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")


class JsonlWriter:
    """Appends objects to a file, each handed to the operating system whole as soon as it is written.

    Args:
        path: the file. resume: continue an existing file; otherwise it must not exist.
        line_start, made_by: how the caller's lines begin, and what the caller is called in messages.

    With resume, a last line cut short by a kill is dropped from the file; `existing` holds the objects before it.
    Raises FileExistsError, FileNotFoundError or ValueError in one sentence.
    """

    def __init__(
        self, path: str | Path, *, resume: bool = False, line_start: bytes = LINE_START, made_by: str = "caw generate"
    ) -> None:
        self.path, self.existing = Path(path), list[dict[str, Any]]()
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"output folder must exist, found none at {self.path.parent}; create it")
        if self.path.is_dir():
            raise ValueError(f"output must be a file, {self.path} is a folder; name a file in it")
        if self.path.exists():
            if not resume:
                raise FileExistsError(
                    f"output must be a new file, {self.path} exists; add --resume to continue it, or remove it"
                )
            self.existing = recover(self.path, line_start, made_by)
        # unbuffered: one write call a line, so a kill between two lines loses nothing
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115  closed by close()

    def write(self, value: dict[str, Any]) -> None:
        self._file.write(encode(value))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def encode(value: dict[str, Any]) -> bytes:
    """One line, its "\n" included; raises ValueError for NaN and infinity, which JSON does not have."""
    return (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def recover(path: Path, line_start: bytes = LINE_START, made_by: str = "caw generate") -> list[dict[str, Any]]:
    """The objects of a file this library wrote; mutates the file: a half-written last line is cut off.

    Raises ValueError for any other line that holds no JSON object.
    """
    content = path.read_bytes()
    *lines, rest = content.split(b"\n")
    values = []
    for number, line in enumerate(lines, 1):
        row = _parse(number, line)
        if isinstance(row, BadLine):
            raise ValueError(f"{path}, line {number}: {row.message}; resume continues files of `{made_by}` only")
        values.append(row.value)
    if rest:  # no line break at the end: the write was cut short, or only its line break was
        row = _parse(len(lines) + 1, rest)
        with open(path, "r+b") as file:
            if isinstance(row, Row):
                file.seek(0, 2)
                file.write(b"\n")
                values.append(row.value)
            elif rest[: len(line_start)] == line_start[: len(rest)]:
                file.truncate(len(content) - len(rest))
            else:  # not the beginning of a line of ours: cutting it off could lose somebody's data
                raise ValueError(f"{path} must be a file of `{made_by}`, its last line is none; name another output")
    return values
