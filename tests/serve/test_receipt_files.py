"""Receipts in a file: durable lines, also of two writers, and errors where the disk is full."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from small_disks import FullFile, inject

from caw.serve.contracts import Begun, Closed
from caw.serve.receipt_files import JsonlReceipts, NoReceipts


def begun(name: str) -> Begun:
    return Begun(name, "cmpl-1", 0, "one", "k1", "tiny", "KGW()", "FixedStrength(value=1.0)", "", 1e-3, 12.5)


CLOSED = Closed("complete", "stop", 1e-5, True, "", 2, 30, "ab" * 32, 13.5)


def test_lines_are_durable_when_the_calls_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    path, sync = tmp_path / "r.jsonl", os.fdatasync
    log = JsonlReceipts(path)
    monkeypatch.setattr(os, "fdatasync", lambda file: (synced.append(path.read_bytes().count(b"\n")), sync(file))[0])
    handle = log.begin(begun("a"))
    handle.close(CLOSED)
    assert synced == [1, 2], "each line was written before it was synced"
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first == {"event": "begun", **vars(begun("a"))}
    assert second == {"event": "closed", "id": "a", **CLOSED.as_dict()}
    assert path.stat().st_mode & 0o777 == 0o600
    log.check()


def test_lines_of_several_threads_and_servers_do_not_mix(tmp_path: Path) -> None:
    logs = [JsonlReceipts(tmp_path / "r.jsonl") for _ in range(2)]

    def write(number: int) -> None:
        for turn in range(25):
            logs[number % 2].begin(begun(f"{number}-{turn}")).close(CLOSED)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert len(lines) == 200 and len({(line["event"], line["id"]) for line in lines}) == 200


def test_a_full_disk_is_an_error_and_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch, FullFile)
    monkeypatch.setattr(FullFile, "room", 10**6)
    log = JsonlReceipts(tmp_path / "r.jsonl")
    log.begin(begun("a"))
    for room in (0, 1, 7, 60):
        monkeypatch.setattr(FullFile, "room", room)
        with pytest.raises(OSError, match=r"cannot write receipts to r.jsonl: the disk is full; free some space"):
            log.begin(begun("b"))
        assert [json.loads(line)["id"] for line in (tmp_path / "r.jsonl").read_text().splitlines()] == ["a"]
    monkeypatch.setattr(FullFile, "room", 10**6)
    log.begin(begun("c"))
    assert [json.loads(line)["id"] for line in (tmp_path / "r.jsonl").read_text().splitlines()] == ["a", "c"]


def test_a_server_that_starts_says_what_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    log = JsonlReceipts(path)
    assert log.resume() == 0
    log.begin(begun("a")).close(CLOSED)
    log.begin(begun("b"))
    with open(path, "ab") as file:
        file.write(b'{"event":"clo')
    log = JsonlReceipts(path)
    assert log.resume() == 1 and log.resume() == 1
    with open(path, "ab") as file:
        file.write(b'{"event":"beg')
    log.begin(begun("c"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["id"] for line in lines] == ["a", "a", "b", "c"] and log.resume() == 2


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "diary.txt"
    path.write_text("dear diary")
    with pytest.raises(ValueError, match="must be a file of `caw serve --receipts`"):
        JsonlReceipts(path)
    assert path.read_text() == "dear diary"


def test_no_receipts() -> None:
    log: Any = NoReceipts()
    log.check()
    assert log.resume() == 0
    log.begin(begun("a")).close(CLOSED)
