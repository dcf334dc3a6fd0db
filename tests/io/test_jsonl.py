"""JSONL rows, ids and bad lines; the writer's promise that a killed run loses nothing and a resumed one repeats
nothing."""

import errno
import io
import json
import os
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from caw.io.inputs import LONGEST
from caw.io.jsonl import BadLine, JsonlWriter, Row, encode, line_id, read_rows, recover, text_field


def rows(content: bytes) -> list[Row | BadLine]:
    return list(read_rows(io.BytesIO(content)))


def test_ids_are_given_or_line_numbers() -> None:
    found = rows(b'{"prompt": "a"}\n\n{"id": "x", "prompt": "b"}\r\n{"id": 7}')
    assert [(r.number, r.id) for r in found if isinstance(r, Row)] == [(1, 1), (3, "x"), (4, 7)]


def test_no_lines() -> None:
    assert rows(b"") == rows(b"\n \n") == []


def test_byte_order_mark_and_separators_inside_text() -> None:
    found = rows(b'\xef\xbb\xbf{"prompt": "a"}\n' + '{"prompt": "b\u2028c\u0085d"}'.encode())
    assert [r.value["prompt"] for r in found if isinstance(r, Row)] == ["a", "b\u2028c\u0085d"]


@pytest.mark.parametrize(("content", "expected"), [
    (b'[{"text": "a"}, {"text": "b"}]', "found a JSON array; write one object a line, e.g. with jq -c '.[]'"),
    (b'[\n  {"text": "a"},\n  {"text": "b"}\n]\n', "found a JSON array"),
    (b'[{"text": "a"},\n{"text": "b"}]', "found a JSON array"),
    (b'{\n  "text": "a"\n}\n', "over several lines; convert it, e.g. with jq -c ."),
])  # fmt: skip
def test_a_file_that_is_one_value_gives_one_bad_line(content: bytes, expected: str) -> None:
    # every line was reported, and each hint asked for a prompt whatever the command reads
    [bad] = rows(content)
    assert isinstance(bad, BadLine) and bad.number == 1 and expected in bad.message


def test_the_hint_names_the_field_that_is_read() -> None:
    [bad] = read_rows(io.BytesIO(b'"a text"'), field="answer")
    assert isinstance(bad, BadLine) and bad.message == 'expected a JSON object, found text; write {"answer": ...}'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"{", "one JSON object"),
        (b"no json", "one JSON object"),
        (b"[" * 100_000, "one JSON object"),
        (b"[1]", "found a list"),
        (b"null", "found null"),
        (b'"text"', "found text"),
        (b"3", "found a number"),
        (b'{"id": null}', "found null"),
        (b'{"id": true}', "found true or false"),
        (b'{"id": 1.5}', "found a number"),
        (b'{"id": 1}', "line 1 has it already"),  # line 1 has no id, so it is its number
        (b'{"prompt": "\xff"}', "byte 0xff"),
        (rb'{"id": "\ud800"}', "half of a surrogate pair"),  # no line of output could hold it
        (b'{"prompt": "' + b"a" * LONGEST + b'"}', "at most 64 MiB"),
    ],
)
def test_a_bad_line_is_named_and_the_others_stay(line: bytes, expected: str) -> None:
    found = rows(b'{"prompt": "a"}\n' + line + b'\n{"prompt": "b"}\n')
    assert [r.number for r in found] == [1, 2, 3]
    assert isinstance(found[1], BadLine) and expected in found[1].message and "\n" not in found[1].message
    assert isinstance(found[0], Row) and isinstance(found[2], Row)


def test_text_field() -> None:
    assert text_field({"prompt": "ä"}, "prompt") == "ä"
    assert text_field({"prompt": ""}, "prompt") == ""
    for value, reason in [({}, "fields none"), ({"text": ""}, "fields text"), ({"prompt": 3}, "a number")]:
        with pytest.raises(ValueError, match=reason):
            text_field(value, "prompt")
    with pytest.raises(ValueError, match="surrogate"):
        text_field(json.loads(r'{"prompt": "\ud800"}'), "prompt")


def test_written_lines_are_whole_at_once(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with JsonlWriter(path) as writer:
        writer.write({"id": 1, "text": "ü\n\u2028"})
        # read through another descriptor while the file is open: nothing waits in a buffer
        assert path.read_bytes() == '{"id": 1, "text": "ü\\n\u2028"}\n'.encode()


@pytest.mark.parametrize("content", [b"dear diary", b'{"id": 1}\nhalf a thought', b'{"id": 1}\nx\n{"id": 2}\n', b"\n"])
def test_recover_leaves_files_of_others_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "diary.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="generate"):
        recover(path)
    assert path.read_bytes() == content


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(encode({"id": 1}))
    with pytest.raises(FileExistsError, match="--resume"):
        JsonlWriter(path)
    assert path.read_bytes() == encode({"id": 1})
    with pytest.raises(FileNotFoundError, match="folder"):
        JsonlWriter(tmp_path / "none" / "out.jsonl")
    with pytest.raises(ValueError, match="folder"):
        JsonlWriter(tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        encode({"x": float("nan")})


def test_two_writers_of_one_file(tmp_path: Path) -> None:
    """Both went on where the file ended when they began: every id was there twice, with exit code 0."""
    path = tmp_path / "out.jsonl"
    with JsonlWriter(path) as writer:
        writer.write({"id": 1})
        with pytest.raises(ValueError, match="is being written by another process"):
            JsonlWriter(path, resume=True)
        writer.write({"id": 2})
    with JsonlWriter(path, resume=True) as writer:
        assert writer.existing == [{"id": 1}, {"id": 2}]


def test_one_that_waited_for_a_file_that_is_gone_makes_it_anew(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first = JsonlWriter(path)

    def go_on() -> None:
        with JsonlWriter(path, resume=True, wait=True) as writer:
            writer.write({"id": 2})

    second = threading.Thread(target=go_on)
    second.start()
    time.sleep(0.1)  # whichever comes first, the outcome is the same
    first.__exit__(ValueError)  # it wrote nothing, so its file goes
    second.join(timeout=60)
    assert recover(path) == [{"id": 2}]


def test_an_id_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    content = b'{"id": 1}\n{"id": "1"}\n{"id": 1}\n'
    path.write_bytes(content)
    with pytest.raises(ValueError, match="line 3 repeats 1 of line 1"):
        JsonlWriter(path, resume=True)
    assert path.read_bytes() == content
    with JsonlWriter(path, resume=True, unique=None, keep=len) as writer:
        assert writer.existing == [1, 1, 1]


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b'\xef\xbb\xbf{"id": 1}\r\n{"id": 2}\r\n', [1, 2]),  # through an editor on Windows
        (b'\xef\xbb\xbf{"id": 1}', [1]),
        (b'{"id": 1}\n{"id": 2, "te\0\0\0', [1]),  # after a power cut
        (b'{"id": 1}\n{"id": 2}\0\0', [1, 2]),
        (b'{"id": 1}\n\0\0\0', [1]),
    ],
)
def test_resume_of_what_editors_and_power_cuts_leave(tmp_path: Path, content: bytes, kept: list[int]) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with JsonlWriter(path, resume=True) as writer:
        assert [line["id"] for line in writer.existing] == kept
        writer.write({"id": 9})
    assert [row.id for row in read_rows(io.BytesIO(path.read_bytes())) if isinstance(row, Row)] == [*kept, 9]
    assert b"\0" not in path.read_bytes()


def test_resume_does_not_hold_the_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    line = encode({"id": 1, "text": "x" * 2**20})
    with open(path, "wb") as file:
        file.writelines(line.replace(b'"id": 1', b'"id": %d' % i) for i in range(64))
    tracemalloc.start()
    try:
        with JsonlWriter(path, resume=True, keep=line_id) as writer:
            assert writer.existing == list(range(64))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**24  # of 64 MiB


def test_a_file_removed_while_it_is_written_ends_the_run(tmp_path: Path) -> None:
    """The lines went to a file that nobody could find again."""
    path = tmp_path / "out.jsonl"
    with JsonlWriter(path) as writer:
        writer.write({"id": 1})
        path.unlink()
        with pytest.raises(OSError, match=r"removed .*out\.jsonl"):
            writer.write({"id": 2})


def test_a_run_that_fails_before_its_first_line_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with pytest.raises(KeyError), JsonlWriter(path):
        raise KeyError
    assert not path.exists()
    path.touch()
    with pytest.raises(KeyError), JsonlWriter(path, resume=True):
        raise KeyError
    assert path.exists()  # not ours


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX files")
def test_only_regular_files_are_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/full"), Path(os.devnull)):
        with pytest.raises(ValueError, match="must be a"):
            JsonlWriter(path, resume=True)
    (tmp_path / "link").symlink_to(tmp_path / "out.jsonl")
    with JsonlWriter(tmp_path / "link") as writer:
        writer.write({"id": 1})
    assert recover(tmp_path / "out.jsonl") == [{"id": 1}] and (tmp_path / "link").is_symlink()
    (tmp_path / "broken").symlink_to(tmp_path / "none" / "out.jsonl")
    with pytest.raises(FileNotFoundError, match="folder must exist"):
        JsonlWriter(tmp_path / "broken")


def test_a_file_is_closed_in_order_or_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "o.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": 3}\n')

    def close(order: list[Any], why: str = "") -> tuple[list[Any], int]:
        with JsonlWriter(path, resume=True) as writer:
            assert writer.close_in_order(order).rpartition(": ")[2] == why
        return [json.loads(line)["id"] for line in path.read_text(encoding="utf-8-sig").splitlines()], os.stat(
            path
        ).st_ino

    with JsonlWriter(path, resume=True) as writer:
        for name in ("of another run", 1, 2):
            writer.write({"id": name})
    with monkeypatch.context() as full:
        full.setattr(os, "replace", Mock(side_effect=OSError(errno.ENOSPC, "No space left", "beside")))
        assert close([1, 2, 3], "No space left")[0] == [3, "of another run", 1, 2]
        full.setattr(os, "fsync", Mock(side_effect=OSError(errno.EIO, "the lines are lost")))
        with pytest.raises(OSError, match=r"the lines are lost.*o\.jsonl"):
            close([1, 2, 3])
    (second := tmp_path / "second").hardlink_to(path)
    close([1, 2, 3], "the file has hard links, which a new file would not have")
    assert path.samefile(second)
    second.unlink()
    assert path.read_bytes().count(b"\n") == 4 and os.listdir(tmp_path) == ["o.jsonl"]
    ids, number = close([1, 2, 3])
    assert ids == ["of another run", 1, 2, 3] and close([1, 2, 3]) == (ids, number), "nothing to do the second time"
