"""The writer of lines under every fault a disk can have: what was acknowledged is there, whole, and nothing else is."""

import errno
import io
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from caw.io.lines import LineFile

LINES = [json.dumps({"id": i, "text": "ü" * i}, ensure_ascii=False).encode() + b"\n" for i in range(4)]
SIZE = sum(map(len, LINES))


class Faulty(io.FileIO):
    """A disk with `room` bytes that refuses `stuck` times to give any back. broken: calls of fsync that fail."""

    room, stuck, broken = 0, 0, 0

    def write(self, data: Any) -> int:
        if not Faulty.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = super().write(bytes(data)[: Faulty.room])
        Faulty.room -= taken
        return taken

    def truncate(self, size: int | None = None) -> int:
        if Faulty.stuck:
            Faulty.stuck -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().truncate(size)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Faulty]]:
    sync = os.fdatasync

    def fdatasync(handle: int) -> None:
        if Faulty.broken:
            Faulty.broken -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(handle)

    def opened(path: Any, mode: str = "r", buffering: int = -1, **options: Any) -> Any:
        assert buffering == 0
        return Faulty(path, mode, **options)

    monkeypatch.setattr("caw.io.lines.open", opened, raising=False)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    Faulty.room, Faulty.stuck, Faulty.broken = 10**6, 0, 0
    yield Faulty


def write_all_lines(path: Path, faults: Callable[[int], None], **options: Any) -> list[bytes]:
    lines, kept = LineFile(path, line_start=b'{"id": ', **options), list[bytes]()
    for number, line in enumerate(LINES):
        faults(number)
        try:
            lines.append(line)
        except OSError:
            continue
        kept.append(line)
    lines.let_go()
    return kept


each_kind = pytest.mark.parametrize("options", [{}, {"durable": True, "shared": True}], ids=["alone", "shared"])


@each_kind
@pytest.mark.parametrize("stuck", [0, 1])
@pytest.mark.parametrize("victim", range(3))
def test_a_disk_that_fills_at_any_byte(
    faulty: type[Faulty], tmp_path: Path, options: dict[str, Any], stuck: int, victim: int
) -> None:
    for room in range(len(LINES[victim])):

        def faults(number: int, room: int = room) -> None:
            faulty.room, faulty.stuck = (room, stuck) if number == victim else (10**6, 0)

        path = tmp_path / f"{room}.jsonl"
        kept = write_all_lines(path, faults, **options)
        assert kept == [line for number, line in enumerate(LINES) if number != victim]
        assert path.read_bytes() == b"".join(kept)


@pytest.mark.parametrize("stuck", [0, 1])
@pytest.mark.parametrize("victim", range(3))
def test_a_line_that_does_not_reach_the_disk_is_not_in_the_file(
    faulty: type[Faulty], tmp_path: Path, stuck: int, victim: int
) -> None:
    """Not even where the first try to take it back fails: it was not acknowledged."""

    def faults(number: int) -> None:
        faulty.broken, faulty.stuck = (1, stuck) if number == victim else (0, 0)

    kept = write_all_lines(tmp_path / "f.jsonl", faults, durable=True, shared=True)
    assert kept == [line for number, line in enumerate(LINES) if number != victim]
    assert (tmp_path / "f.jsonl").read_bytes() == b"".join(kept)


@each_kind
def test_a_process_that_died_with_half_a_line(tmp_path: Path, options: dict[str, Any]) -> None:
    """At every byte; where the line break alone is missing, the line is whole and stays."""
    for cut in range(1, len(LINES[1]) + 1):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(LINES[0] + LINES[1][:-cut])
        lines = LineFile(path, line_start=b'{"id": ', **options)
        lines.append(LINES[2])
        lines.let_go()
        assert path.read_bytes() == b"".join([LINES[0], *(LINES[1:2] if cut == 1 else []), LINES[2]])


def test_what_another_wrote_behind_a_failed_line_stays(faulty: type[Faulty], tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    mine, theirs = (LineFile(path, line_start=b'{"id": ', shared=True, durable=True) for _ in range(2))
    faulty.room, faulty.stuck = 9, 1
    with pytest.raises(OSError):
        mine.append(LINES[0])
    faulty.room = 10**6
    theirs.append(LINES[1])
    mine.append(LINES[2])
    assert path.read_bytes() == LINES[1] + LINES[2]


def test_a_line_longer_than_a_piece_is_cut_off_whole(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(LINES[0] + b'{"id": "' + b"x" * 300_000)
    LineFile(path, line_start=b'{"id": ').mend()
    assert path.read_bytes() == LINES[0]


def _append(path: Path, name: str) -> None:
    lines = LineFile(path, shared=True)
    for i in range(200):
        lines.append(json.dumps({"name": name, "i": i, "pad": "x" * 900}).encode() + b"\n")


def test_processes_that_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_append, args=(path, name)) for name in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert sorted((row["name"], row["i"]) for row in found) == [(name, i) for name in "abc" for i in range(200)]


def test_pipes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lines need a regular file"):
        LineFile("/dev/null")
