"""Reading files and pipes, line by line, with limits and never from a device."""

from __future__ import annotations

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
    """A binary file to read; - is stdin. Raises ValueError for folders and devices, OSError where there is nothing."""
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


def lines_of(file: Any, longest: int = LONGEST) -> Iterator[bytes | None]:
    """Lines of a binary file, their "\\n" included; None in place of one beyond `longest` bytes.

    Raises ValueError for a stream that does not end and has no line breaks.
    """
    piece = min(PIECE, longest + 1)
    while line := file.readline(piece):
        if len(line) == piece and not line.endswith(b"\n"):
            line = _rest_of(file, line, longest)
        yield line if line is not None and len(line) <= longest else None


def _rest_of(file: Any, start: bytes, longest: int) -> bytes | None:
    """A long line in pieces: until it is too long, from there on only its length is kept."""
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
    """What is wrong with a line that `lines_of` gives None for."""
    return f"a line must have at most {longest >> 20} MiB, it has more; shorten it or leave it out"


def read_bounded(source: StrPath, longest: int = LONGEST) -> bytes:
    """All bytes of a file or pipe; - is stdin. Raises ValueError beyond `longest` bytes; no more are kept."""
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
    """What messages call a file; - is stdin."""
    return "stdin" if source == "-" else str(source)
