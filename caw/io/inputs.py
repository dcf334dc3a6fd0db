"""Read files and pipes line by line, with limits; devices are rejected."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from caw.io.files import StrPath, check_input

LONGEST = 64 * 2**20  # bytes of a line, and of a text that is read as a whole
ENDLESS = 2**30  # bytes without a line break after which reading stops
PIECE = 2**20


@contextlib.contextmanager
def open_input(source: StrPath) -> Iterator[Any]:
    """Open a binary file to read; - is stdin. ValueError for folders and devices, OSError for missing files."""
    if source == "-":
        if sys.stdin is None:
            raise ValueError("stdin must be open, it is closed; name a file")
        with contextlib.suppress(OSError):  # a replaced stdin may have no descriptor
            check_input(os.fstat(sys.stdin.fileno()), "stdin")
        yield sys.stdin.buffer
        return
    check_input(os.stat(source), str(source))  # before it is opened, which makes some devices act
    with open(source, "rb") as file:
        yield file


def line_count(source: StrPath) -> int | None:
    """Return the number of lines of a file; None for stdin and others that can be read only once."""
    if source == "-" or not os.path.isfile(source):
        return None
    with open(source, "rb") as file:
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(PIECE), b""))


def lines_of(file: Any, longest: int = LONGEST) -> Iterator[bytes | None]:
    """Yield a binary file's lines, None for one beyond `longest` bytes; ValueError for an endless one."""
    piece = min(PIECE, longest + 1)
    while line := file.readline(piece):
        if len(line) == piece and not line.endswith(b"\n"):
            line = _rest_of(file, line, longest)
        yield line if line is not None and len(line) <= longest else None


def _rest_of(file: Any, start: bytes, longest: int) -> bytes | None:
    """Read a long line in pieces: beyond the limit only its length is counted."""
    pieces, size = [start], len(start)
    while piece := file.readline(PIECE):
        size += len(piece)
        if size > ENDLESS:
            raise ValueError(f"input must have lines, found none in {size >> 20} MiB; give JSONL")
        pieces = [*pieces, piece] if size <= longest else []
        if piece.endswith(b"\n"):
            break
    return b"".join(pieces) if size <= longest else None


def too_long(longest: int = LONGEST) -> str:
    """Return the error for a line that `lines_of` yields None for."""
    return f"a line must have at most {longest >> 20} MiB, it has more; shorten it or leave it out"


def read_bounded(source: StrPath, longest: int = LONGEST) -> bytes:
    """Read all bytes of a file or pipe; - is stdin. ValueError beyond `longest` bytes."""
    with open_input(source) as file:
        content: bytes = file.read(longest + 1)
    if len(content) > longest:
        raise ValueError(f"{name_of(source)} must have at most {longest >> 20} MiB, it has more; give a part of it")
    return content


def read_text(source: StrPath, *, translate: bool = False) -> str:
    """`read_bounded` of UTF-8 text, without a byte order mark; translate: every kind of line end becomes "\n".

    Raises ValueError in one sentence for other bytes.
    """
    try:
        text = read_bounded(source).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{name_of(source)} must be UTF-8 text, it is not; convert it") from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if translate else text


def name_of(source: StrPath) -> str:
    """Return the name of a file in messages; - is stdin."""
    return "stdin" if source == "-" else str(source)
