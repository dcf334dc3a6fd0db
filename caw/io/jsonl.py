"""JSONL input and output: one object per line, bad lines reported by number, output that survives a kill.

Lines end in LF alone, are counted from 1, and blank ones are skipped but counted. A row's id is its field "id" (text or
integer) or else its line number.
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from caw.io.files import StrPath, check_output, naming, replace_file
from caw.io.inputs import lines_of, name_of, too_long
from caw.io.lines import BYTE_ORDER_MARK, LineFile
from caw.io.unicode import is_unicode
from caw.io.warn import warn_caller

RowId = str | int
ARRAY = "expected one JSON object a line, found a JSON array; write one object a line, e.g. with jq -c '.[]'"
SHOWN = 5  # numbers of lines in a message
LINE_START = b'{"id": '  # how every line of `caw generate` begins


@dataclass(frozen=True)
class Row:
    """A good line: its number, its id, and its object."""

    number: int
    id: RowId
    value: dict[str, Any]


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be used, and why: expected, found, remedy."""

    number: int
    message: str


def read_rows(lines: Any, *, unique: bool = True, field: str = "prompt") -> Iterator[Row | BadLine]:
    """Rows and bad lines, in order, of a binary file or of its lines. A line too long to be held is bad, and where ids
    have to be unique, a repeated one.

    field: what a line must hold, for the hint of a bad one. A file that is one JSON value over several lines gives one
    bad line, which says how to convert it.
    """
    seen: dict[RowId, int] = {}
    begun = False
    found: Iterable[bytes | None] = lines_of(lines) if hasattr(lines, "readline") else lines
    for number, raw in enumerate(found, 1):
        if raw is None:
            yield BadLine(number, too_long())
            continue
        if number == 1:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
        if not raw.strip():
            continue
        if not begun and (said := _over_lines(raw)):
            yield BadLine(number, said)
            return
        begun = True
        row = _parse(number, raw, field)
        if unique and isinstance(row, Row) and row.id in seen:
            row = BadLine(number, f"id {row.id!r} must be used once, line {seen[row.id]} has it already; change one")
        if unique and isinstance(row, Row):
            seen[row.id] = number
        yield row


def _over_lines(first: bytes) -> str:
    """Return the error for a file whose first line opens a value that ends on a later line; "" for every other file."""
    start = first.strip()
    if start == b"{":
        return "expected one JSON object a line, found one over several lines; convert it, e.g. with jq -c ."
    if not start.startswith(b"["):
        return ""
    try:
        json.loads(start)
    except (ValueError, RecursionError):
        return ARRAY
    return ""


def _parse(number: int, raw: bytes, field: str = "prompt") -> Row | BadLine:
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadLine(number, f"expected UTF-8 text, found byte 0x{raw[error.start]:02x}; convert the file to UTF-8")
    except (ValueError, RecursionError) as error:
        reason = str(error).split(":")[0].lower()
        return BadLine(
            number, f"expected one JSON object, found something else ({reason}); write the object on one line"
        )
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return BadLine(number, ARRAY)
    if not isinstance(value, dict):
        return BadLine(number, f"expected a JSON object, found {_kind(value)}; write {{{json.dumps(field)}: ...}}")
    row_id = value.get("id", number)
    if isinstance(row_id, bool) or not isinstance(row_id, (str, int)):
        return BadLine(number, f"id must be text or an integer, found {_kind(row_id)}; change it or leave it out")
    if isinstance(row_id, str) and not is_unicode(row_id):
        return BadLine(number, "id must be valid Unicode, found half of a surrogate pair; change it or leave it out")
    return Row(number, row_id, value)


def text_field(value: dict[str, Any], name: str) -> str:
    """Return the text in field `name`. ValueError if it is missing, no text, or holds half of a surrogate pair."""
    if name not in value:
        found = ", ".join(sorted(value)) or "none"
        raise ValueError(f"expected a field {name!r}, found fields {found}; add it, or name another with --field")
    text = value[name]
    if not isinstance(text, str):
        raise ValueError(f"{name} must be text, found {_kind(text)}; put it in quotes")
    if not is_unicode(text):
        raise ValueError(f"{name} must be valid Unicode, found half of a surrogate pair; repair the text")
    return text


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _whole(line: dict[str, Any]) -> Any:
    return line


def line_id(line: dict[str, Any]) -> Any:
    return line.get("id")


class JsonlWriter:
    """Appends objects to a file, each handed to the operating system whole as soon as it is written.

    Args:
        path: the file. resume: continue an existing file; otherwise it must not exist.
        line_start, made_by: how the caller's lines begin, and what the caller is called in messages.
        keep: what `existing` holds of each line that is there (all of it by default, which may be much).
        unique: what names a line, None = nothing does; a file that has a name twice is refused.
        busy: what to say if another process writes the file. wait: wait for it instead.

    The file is this process's alone until `close` or the process's end, however it ends. With resume, lines cut short
    are dropped from the file (a warning names those before the last); `existing` is about the others. A file that was
    made here and got no line because of an exception is removed again. Raises OSError or ValueError in one sentence.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        resume: bool = False,
        line_start: bytes = LINE_START,
        made_by: str = "caw generate",
        keep: Callable[[dict[str, Any]], Any] = _whole,
        unique: Callable[[dict[str, Any]], Hashable] | None = line_id,
        busy: str = "",
        wait: bool = False,
    ) -> None:
        self.path, self.existing = Path(path), list[Any]()
        _check_writable(self.path, resume)
        self._lines = LineFile(path, line_start=line_start, made_by=made_by, new=not resume, busy=busy, wait=wait)
        if not resume:
            return
        torn: list[int] = []
        try:
            self._lines.mend()
            with naming(self.path):
                self.existing = recover(self.path, line_start, made_by, keep, unique, torn)
            if torn:
                warn_caller(f"{named_lines(self.path, torn)}; what they held is made again")
                self._drop_torn()
        except BaseException:
            self._lines.let_go()
            raise

    def write(self, value: dict[str, Any]) -> None:
        """Append one line whole or not at all; in the latter case OSError is raised."""
        self._lines.append(encode(value))

    def _drop_torn(self) -> None:
        """Leave out the lines that hold no object, in another file that takes the place of this one at once."""
        with naming(self.path), open(self._lines.target, "rb") as file:
            _check_links(file)
            lines = (raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw for number, raw in enumerate(file, 1))
            replace_file(self._lines.target, (line for line in lines if isinstance(_parse(0, line), Row)))
        self._lines.reopen()

    def close_in_order(self, names: Iterable[Hashable]) -> str:
        """Put the lines in the order of these ids, those of others before them, and close: a run that was killed and
        continued then ends with the bytes of one that was not. Another file takes the place of this one, at once.

        Returns "", or one sentence where this cannot be done (no room, no permission, hard links): the lines then stay
        as they are. Raises OSError, as `close` does, if they could not be written.
        """
        try:
            self._lines.sync()
            try:
                if not self._lines.removed:
                    self._put_in_order({name: place for place, name in enumerate(names)})
            except OSError as error:
                why = error.strerror or error
                return f"the lines of {self.path} are all written, and stay in the order in which they were: {why}"
            return ""
        finally:
            self._lines.let_go()

    def _put_in_order(self, places: dict[Hashable, int]) -> None:
        found, end = list[tuple[int, int, int]](), 0
        with open(self._lines.target, "rb") as file:
            for line in file:
                bare, end = line.removeprefix(BYTE_ORDER_MARK), end + len(line)
                found.append((places.get(line_id(json.loads(bare)), -1), end - len(bare), len(bare)))
            ordered = sorted(found, key=lambda each: each[0])
            if ordered != found:
                _check_links(file)
                replace_file(self._lines.target, (_part(file, start, size) for _, start, size in ordered))

    def close(self) -> None:
        """Hand everything to the disk and let go of the file. Raises OSError if it could not be written."""
        self._lines.close()

    def __enter__(self) -> "JsonlWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None and self._lines.made and not self._lines.closed and not self._lines.size:
            with contextlib.suppress(OSError):
                self._lines.target.unlink()
        self.close()


def _check_links(file: BinaryIO) -> None:
    if os.fstat(file.fileno()).st_nlink > 1:
        raise OSError(errno.EMLINK, "the file has hard links, which a new file would not have")


def _part(file: BinaryIO, start: int, size: int) -> bytes:
    file.seek(start)
    return file.read(size)


def _check_writable(path: Path, resume: bool) -> None:
    """Lines go to a regular file, new unless it is continued."""
    with naming(path):
        check_output(path)
        if not path.exists():
            return
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError(f"output must be a regular file, {path} is a pipe or a device; name a file, or use stdout")
    if not resume:
        raise FileExistsError(f"output must be a new file, {path} exists; add --resume to continue it, or remove it")


def encode(value: dict[str, Any]) -> bytes:
    """One line, its "\n" included; raises ValueError for NaN and infinity, which JSON does not have, and for half of a
    surrogate pair, which UTF-8 does not have."""
    try:
        return (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("a line must be valid Unicode, found half of a surrogate pair; repair the text") from None


def recover(
    path: Path,
    line_start: bytes = LINE_START,
    made_by: str = "caw generate",
    keep: Callable[[dict[str, Any]], Any] = _whole,
    unique: Callable[[dict[str, Any]], Hashable] | None = line_id,
    torn: list[int] | None = None,
) -> list[Any]:
    """Return what `keep` returns for each object of a file that this library wrote.

    torn: gets the numbers of lines that begin as ours do and are not whole, None = they are refused as all others that
    hold no JSON object. Raises ValueError for those, and where `unique` says two lines are the same.
    """
    kept, seen = list[Any](), dict[Hashable, int]()
    with open(path, "rb") as file:
        for number, raw in enumerate(lines_of(file), 1):
            if raw is None:
                raise ValueError(f"{path}, line {number}: {too_long()}")
            bare = raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw
            row = _parse(number, bare)
            if isinstance(row, BadLine):
                if torn is not None and bare.startswith(line_start):
                    torn.append(number)
                    continue
                raise ValueError(f"{path}, line {number}: {row.message}; resume continues files of `{made_by}` only")
            name = None if unique is None else unique(row.value)
            if name is not None and seen.setdefault(name, number) != number:
                raise ValueError(
                    f"{path} must hold each id once, line {number} repeats {name!r} of line {seen[name]}; remove one"
                )
            kept.append(keep(row.value))
    return kept


def named_lines(source: StrPath, numbers: Sequence[int]) -> str:
    """Describe skipped lines: how many, and which."""
    shown = ", ".join(map(str, numbers[:SHOWN])) + (", ..." if len(numbers) > SHOWN else "")
    said = "line is no whole JSON object and is" if len(numbers) == 1 else "lines are no whole JSON objects and are"
    return f"{name_of(source)}: {len(numbers)} {said} left out (line {shown})"
