"""What is read has an end: no devices, no line and no text beyond a limit, and memory stays bounded."""

import io
import os
import stat
import threading
import tracemalloc
from pathlib import Path

import pytest

from caw.io import inputs
from caw.io.inputs import LONGEST, lines_of, open_input, read_bounded, read_text

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX files")


class Endless(io.RawIOBase):
    """Letters without a line break, up to a number of bytes."""

    def __init__(self, size: int) -> None:
        self.left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        count = min(len(buffer), self.left)
        buffer[:count] = b"x" * count
        self.left -= count
        return count


def test_a_line_too_long_is_none_and_the_others_stay() -> None:
    content = b"ab\n" + b"c" * 9 + b"\nabcd\n" + b"d" * 4 + b"\n\nlast"
    assert list(lines_of(io.BytesIO(content), 5)) == [b"ab\n", None, b"abcd\n", b"dddd\n", b"\n", b"last"]
    assert list(lines_of(io.BytesIO(b"x" * 20), 5)) == [None]
    assert list(lines_of(io.BytesIO(b""), 5)) == []


def test_lines_longer_than_a_piece_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "PIECE", 4)
    content = [b"abc\n", b"abcd\n", b"abcdefg\n", b"\n", b"abcdefgh\n", b"abcdefghi"]
    assert list(lines_of(io.BytesIO(b"".join(content)), 9)) == content
    assert list(lines_of(io.BytesIO(b"".join(content)), 8)) == [*content[:4], None, None]


def test_a_long_line_is_not_held() -> None:
    size = 2 * LONGEST
    tracemalloc.start()
    try:
        assert list(lines_of(io.BufferedReader(Endless(size)))) == [None]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.2 * LONGEST


def test_a_stream_without_lines_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "ENDLESS", 2**22)
    monkeypatch.setattr(inputs, "PIECE", 2**16)
    with pytest.raises(ValueError, match="must have lines"):
        list(lines_of(io.BufferedReader(Endless(2**40)), 2**16))


@posix
@pytest.mark.parametrize("path", ["/dev/zero", "/dev/full", "/dev/urandom"])
def test_devices_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match=f"must be a file or a pipe, {path} is a device"):
        read_bounded(path)


@posix
def test_what_may_be_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert read_bounded(tmp_path / "x") == b"abc" and read_bounded(os.devnull) == b""
    with pytest.raises(ValueError, match="is a folder"), open_input(tmp_path):
        pass
    with pytest.raises(FileNotFoundError):
        read_bounded(tmp_path / "none")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(b"through a pipe"))
    writer.start()
    assert read_bounded(fifo) == b"through a pipe" and stat.S_ISFIFO(fifo.stat().st_mode)
    writer.join()
    with open(tmp_path / "x", "rb") as file:
        assert read_bounded(f"/dev/fd/{file.fileno()}") == b"abc"  # as in process substitution


def test_texts_are_bounded_and_decoded(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    with pytest.raises(ValueError, match="has more"):
        read_bounded(path, 4)
    path.write_bytes("\ufeffä\r\nb\rc\n".encode())
    assert read_text(path) == "ä\r\nb\rc\n" and read_text(path, translate=True) == "ä\nb\nc\n"
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="must be UTF-8 text"):
        read_text(path)
