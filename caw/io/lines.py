"""The only writer of lines: a line is in the file whole or not at all, whatever the disk does.

A `write` that the disk truncates is undone. If that fails too, the next `append` does it before it writes, so that no
line is ever joined to half of another. All line files of this library are written here: those of `caw generate`, `caw
label`, `caw evaluate` and `caw.ray`, and the receipts of a server.
"""

import contextlib
import errno
import io
import json
import os
import stat
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from caw.io.files import lock, naming, unlock, write_all

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PIECE = 1 << 16
REMOVED = "it was removed while it was being written"


class LineFile:
    """Appends lines to a regular file, which is created if missing.

    Args:
        path: the file. line_start, made_by: how its lines begin, and who writes them in messages; half a line that
            begins otherwise is somebody's data, and is refused, not cut off.
        shared: other processes may append too, each holding the file for a line. Otherwise it is this object's alone,
            until `close` or the process's end, however it ends.
        durable: every line is on the disk when `append` returns, or `append` raises and it is not in the file.
            Otherwise lines are handed to the operating system, and `sync` or `close` waits for the disk.
        new: the file must not exist. busy: what to say if another process holds it. wait: wait instead.
        mode: permissions of a new file, less the umask.

    Threads may share it. Raises OSError or ValueError in one sentence.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        line_start: bytes = b"{",
        made_by: str = "caw",
        shared: bool = False,
        durable: bool = False,
        new: bool = False,
        busy: str = "",
        wait: bool = False,
        mode: int = 0o666,
    ) -> None:
        self.path, self.line_start, self.made_by = Path(path), line_start, made_by
        self.shared, self.durable = shared, durable
        self._busy = busy or f"{path} is being written by another process; wait for it, or name another output"
        self._threads = threading.Lock()
        self._failed = (0, b"")  # where a line began that could not be taken back, and what of it is there
        # O_EXCL would refuse a dangling link, which may be made into a file
        self.target = Path(os.path.realpath(path))
        with naming(self.path):
            self._file, self.made = self._open(new, wait, mode)
        _close_in_children(self)

    def _open(self, new: bool, wait: bool, mode: int) -> tuple[io.FileIO, bool]:
        """(the open file, held unless it is shared; whether it was made here)."""
        alone = os.O_EXCL if new else 0  # another process made it at the same moment
        while True:
            made = not self.target.exists()
            file = _opened(self.target, alone, mode)
            try:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise ValueError(f"lines need a regular file, {self.path} is a pipe or a device; name a file")
                if not self.shared:
                    lock(file, self._busy, wait=wait)
                if not _removed(file, self.target):  # by the process that held the lock
                    return file, made
            except BaseException:
                file.close()
                raise
            file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    @property
    def removed(self) -> bool:
        """Whether the file was deleted meanwhile, so that lines would be lost."""
        return _removed(self._file, self.target)

    def append(self, line: bytes) -> None:
        """Append one line, including its "\n", whole or not at all; in the latter case OSError is raised."""
        with self._held():
            if self.removed:
                raise OSError(errno.ENOENT, REMOVED)
            start = self._mended()
            try:
                write_all(self._file, line)
                if self.durable:
                    getattr(os, "fdatasync", os.fsync)(self._file.fileno())  # Linux alone has the cheaper one
            except BaseException:
                self._take_back(start)
                raise

    def mend(self) -> None:
        """End the file's last line: a whole one gets its line break, a half one is cut off.

        Zeros at its end are what a power cut leaves. Raises ValueError where half a line is not one of ours.
        """
        with self._held():
            self._mended()

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        with naming(self.path), self._threads:
            if not self.shared:
                yield
                return
            lock(self._file, self._busy, wait=True)
            try:
                yield
            finally:
                unlock(self._file)

    def _mended(self) -> int:
        """Return where the next line begins, after removing the remains of a failure."""
        start, part = self._failed
        if part and self.size == start + len(part) and self._read(start, len(part)) == part:  # nobody wrote behind it
            self._file.truncate(start)
        self._failed = (0, b"")
        size = self.size
        if not size or self._read(size - 1, 1) == b"\n":
            return size
        start, half = self._last(size)
        bare = half.rstrip(b"\0")
        text = bare if start else bare.removeprefix(BYTE_ORDER_MARK)
        if _is_object(text):
            if bare != half:
                self._file.truncate(start + len(bare))
            try:
                write_all(self._file, b"\n")
            except OSError:
                self._take_back(start + len(bare))
                raise
            return self.size
        if not (text[: len(self.line_start)] == self.line_start[: len(text)] and (bare or start)):
            raise ValueError(
                f"{self.path} must be a file of `{self.made_by}`, its last line is none; name another output"
            )
        self._file.truncate(start)
        return start

    def _last(self, size: int) -> tuple[int, bytes]:
        """(where the last line begins, its bytes)."""
        pieces, at = list[bytes](), size
        while at:
            count = min(PIECE, at)
            at -= count
            piece = self._read(at, count)
            if (place := piece.rfind(b"\n")) >= 0:
                pieces.append(piece[place + 1 :])
                return at + place + 1, b"".join(reversed(pieces))
            pieces.append(piece)
        return 0, b"".join(reversed(pieces))

    def _read(self, at: int, count: int) -> bytes:
        self._file.seek(at)  # what is appended goes to the end all the same
        return self._file.read(count) or b""

    def _take_back(self, start: int) -> None:
        """Remove the line that begins here; if that fails, the next `append` does it."""
        try:
            self._file.truncate(start)
        except OSError:
            self._failed = (start, self._read(start, self.size - start))

    def sync(self) -> None:
        """Wait until all lines are on the disk. OSError if they cannot be."""
        with naming(self.path):
            try:
                os.fsync(self._file.fileno())  # network file systems report only now that they are full
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                    raise

    def free(self) -> int:
        """Bytes that the file system has left for this process."""
        found = os.fstatvfs(self._file.fileno())
        return found.f_bavail * found.f_frsize

    def let_go(self) -> None:
        """Close the file without waiting for the disk."""
        self._file.close()

    def close(self) -> None:
        """Write everything to the disk and release the file. OSError if it could not be written."""
        if self._file.closed:
            return
        try:
            self.sync()
        finally:
            self._file.close()

    def reopen(self) -> None:
        """Continue in the file that has replaced this one, which is held until then."""
        with naming(self.path):
            held, (self._file, _) = self._file, self._open(False, False, 0o666)
            self._failed = (0, b"")
            held.close()


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _close_in_children(lines: LineFile) -> None:
    """A forked child may outlive this process and must not keep the lock."""
    there = weakref.ref(lines)

    def close() -> None:
        mine = there()
        if mine is not None:
            mine._file.close()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=close)


def _opened(target: Path, alone: int, mode: int) -> io.FileIO:
    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | alone, mode)

    # unbuffered: one write call a line, so a kill between two lines loses nothing; read, to see how it ends
    return open(target, "ab+", buffering=0, opener=opener)


def _removed(file: io.FileIO, target: Path) -> bool:
    found = os.fstat(file.fileno())
    if found.st_nlink:
        return False
    with contextlib.suppress(OSError):  # some file systems do not count links
        return not os.path.samestat(found, os.stat(target))
    return True
