"""JSONL in and out: one object a line, bad lines named by number, output that survives a kill.

Lines end in "\n" alone, are counted from 1, and blank ones are skipped but counted. A row's id is its field "id"
(text or integer) or else its line number.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from caw.io.files import check_output, lock, naming, replace_file, write_all
from caw.io.inputs import lines_of, too_long
from caw.io.unicode import is_unicode

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


def read_rows(lines: Any, *, unique: bool = True) -> Iterator[Row | BadLine]:
    """Rows and bad lines, in order, of a binary file or of its lines. A line too long to be held is bad, and where ids
    have to be unique, a repeated one."""
    seen: dict[RowId, int] = {}
    found: Iterable[bytes | None] = lines_of(lines) if hasattr(lines, "readline") else lines
    for number, raw in enumerate(found, 1):
        if raw is None:
            yield BadLine(number, too_long())
            continue
        if number == 1:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
        if not raw.strip():
            continue
        row = _parse(number, raw)
        if unique and isinstance(row, Row) and row.id in seen:
            row = BadLine(number, f"id {row.id!r} must be used once, line {seen[row.id]} has it already; change one")
        if unique and isinstance(row, Row):
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
    if isinstance(row_id, str) and not is_unicode(row_id):
        return BadLine(number, "id must be valid Unicode, found half of a surrogate pair; change it or leave it out")
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
    if not is_unicode(text):
        raise ValueError(f"{name} must be valid Unicode, found half of a surrogate pair; repair the text")
    return text


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _whole(line: dict[str, Any]) -> Any:
    return line


def line_id(line: dict[str, Any]) -> Any:
    """What names a line of most files."""
    return line.get("id")


class JsonlWriter:
    """Appends objects to a file, each handed to the operating system whole as soon as it is written.

    Args:
        path: the file. resume: continue an existing file; otherwise it must not exist.
        line_start, made_by: how the caller's lines begin, and what the caller is called in messages.
        keep: what `existing` holds of each line that is there (all of it by default, which may be much).
        unique: what names a line, None = nothing does; a file that has a name twice is refused.
        busy: what to say if another process writes the file. wait: wait for it instead.

    The file is this process's alone until `close` or the process's end, however it ends. With resume, a last line cut
    short by a kill is dropped from the file; `existing` is about the lines before it. A file that was made here and got
    no line because of an exception is removed again. Raises OSError or ValueError in one sentence.
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
        busy = busy or f"{self.path} is being written by another process; wait for it, or name another output"
        # O_EXCL would refuse a dangling link, which may be made into a file
        self._target = Path(os.path.realpath(path))
        with naming(self.path):
            self._open(resume, busy, wait)
            try:
                if resume:
                    self.existing = recover(self.path, line_start, made_by, keep, unique)
            except BaseException:
                self._file.close()
                raise
        _close_in_children(self)

    def _open(self, resume: bool, busy: str, wait: bool) -> None:
        alone = 0 if resume else os.O_EXCL  # another process made it at the same moment

        def opener(name: str, flags: int) -> int:
            return os.open(name, flags | alone, 0o666)

        while True:
            self._made = not self._target.exists()
            # unbuffered: one write call a line, so a kill between two lines loses nothing
            self._file = open(self._target, "ab", buffering=0, opener=opener)  # noqa: SIM115  closed by close()
            try:
                lock(self._file, busy, wait=wait)
            except BaseException:
                self._file.close()
                raise
            if not self._removed():  # by the process that held the lock
                return
            self._file.close()

    def _removed(self) -> bool:
        """Whether the file was deleted meanwhile, so that lines would be lost."""
        found = os.fstat(self._file.fileno())
        if found.st_nlink:
            return False
        with contextlib.suppress(OSError):  # some file systems do not count links
            return not os.path.samestat(found, os.stat(self._target))
        return True

    def write(self, value: dict[str, Any]) -> None:
        """Append one line, all of it or, if that cannot be, nothing of it; then OSError is raised."""
        line = encode(value)
        with naming(self.path):
            if self._removed():
                raise OSError(errno.ENOENT, "it was removed while it was being written")
            size = os.fstat(self._file.fileno()).st_size
            try:
                write_all(self._file, line)
            except BaseException:
                try:
                    self._file.truncate(size)
                except OSError:  # nothing may be appended to half a line
                    self._file.close()
                raise

    def close_in_order(self, names: Iterable[Hashable]) -> str:
        """Put the lines in the order of these ids, those of others before them, and close: a run that was killed and
        continued then ends with the bytes of one that was not. Another file takes the place of this one, at once.

        Returns "", or one sentence where this cannot be done (no room, no permission, hard links): the lines then stay
        as they are. Raises OSError, as `close` does, if they could not be written.
        """
        with naming(self.path):
            try:
                self._sync()
                try:
                    if not self._removed():
                        self._put_in_order({name: place for place, name in enumerate(names)})
                except OSError as error:
                    why = error.strerror or error
                    return f"the lines of {self.path} are all written, and stay in the order in which they were: {why}"
                return ""
            finally:
                self._file.close()

    def _put_in_order(self, places: dict[Hashable, int]) -> None:
        found, end = list[tuple[int, int, int]](), 0
        with open(self._target, "rb") as file:
            for line in file:
                bare, end = line.removeprefix(BYTE_ORDER_MARK), end + len(line)
                found.append((places.get(line_id(json.loads(bare)), -1), end - len(bare), len(bare)))
            ordered = sorted(found, key=lambda each: each[0])
            if ordered != found:
                if os.fstat(file.fileno()).st_nlink > 1:
                    raise OSError(errno.EMLINK, "the file has hard links, which a new file would not have")
                replace_file(self._target, (_part(file, start, size) for _, start, size in ordered))

    def close(self) -> None:
        """Hand everything to the disk and let go of the file. Raises OSError if it could not be written."""
        if self._file.closed:
            return
        with naming(self.path):
            try:
                self._sync()
            finally:
                self._file.close()

    def _sync(self) -> None:
        try:
            os.fsync(self._file.fileno())  # network file systems report only now that they are full
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None and self._made and not self._file.closed and not os.fstat(self._file.fileno()).st_size:
            with contextlib.suppress(OSError):
                self._target.unlink()
        self.close()


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


def _close_in_children(writer: JsonlWriter) -> None:
    """A forked child may outlive this process and must not keep the lock."""
    there = weakref.ref(writer)

    def close() -> None:
        mine = there()
        if mine is not None:
            mine._file.close()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=close)


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
) -> list[Any]:
    """What `keep` returns for each object of a file this library wrote; a half-written last line is cut off the file.

    Raises ValueError for any other line that holds no JSON object, and where `unique` says two lines are the same.
    """
    kept, seen, end = list[Any](), dict[Hashable, int](), 0
    with open(path, "rb") as file:
        for number, raw in enumerate(lines_of(file), 1):
            if raw is None:
                raise ValueError(f"{path}, line {number}: {too_long()}")
            whole = raw.endswith(b"\n")
            row: Row | BadLine | None
            if whole:
                row = _parse(number, raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw)
            else:
                row = _mend(path, number, end, raw, line_start, made_by)
            if row is None:
                break
            if isinstance(row, BadLine):
                raise ValueError(f"{path}, line {number}: {row.message}; resume continues files of `{made_by}` only")
            name = None if unique is None else unique(row.value)
            if name is not None and seen.setdefault(name, number) != number:
                raise ValueError(
                    f"{path} must hold each id once, line {number} repeats {name!r} of line {seen[name]}; remove one"
                )
            kept.append(keep(row.value))
            end += len(raw)
            if not whole:  # the line break that was just added
                break
    return kept


def _mend(path: Path, number: int, start: int, raw: bytes, line_start: bytes, made_by: str) -> Row | None:
    """The row of a last line without line break, which it gets; None if it was cut short, and is now cut off.

    start: where it begins in the file. Zeros at its end are what a power cut leaves. Raises ValueError for a line that
    is not the beginning of one of ours: cutting it off could lose somebody's data.
    """
    bare = raw.rstrip(b"\0")
    row = _parse(number, bare.removeprefix(BYTE_ORDER_MARK) if number == 1 else bare)
    if isinstance(row, BadLine) and not (bare[: len(line_start)] == line_start[: len(bare)] and (bare or number > 1)):
        raise ValueError(f"{path} must be a file of `{made_by}`, its last line is none; name another output")
    with open(path, "r+b", buffering=0) as file:
        if isinstance(row, BadLine):
            file.truncate(start)
            return None
        if bare != raw:
            file.truncate(start + len(bare))
        file.seek(0, os.SEEK_END)
        write_all(file, b"\n")
    return row
