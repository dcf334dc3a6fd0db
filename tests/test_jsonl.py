"""JSONL rows, ids and bad lines; the writer's promise that a killed run loses nothing and a resumed one repeats
nothing."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from caw.jsonl import BadLine, JsonlWriter, Row, encode, read_rows, recover, text_field


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


@pytest.mark.parametrize("cut", range(1, len(encode({"id": 2, "text": "ü"}))))
def test_resume_after_a_line_cut_short(tmp_path: Path, cut: int) -> None:
    path, first, second = tmp_path / "out.jsonl", {"id": 1, "text": "a"}, {"id": 2, "text": "ü"}
    path.write_bytes(encode(first) + encode(second)[:-cut])
    with JsonlWriter(path, resume=True) as writer:
        # only the line break is missing: the line is whole
        assert writer.existing == ([first, second] if cut == 1 else [first])
        writer.write({"id": 3})
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines == [*writer.existing, {"id": 3}]


def test_resume_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with JsonlWriter(path, resume=True) as writer:
        assert writer.existing == []
    assert path.read_bytes() == b""


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


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_a_killed_writer_keeps_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    # its modules alone: importing the whole package takes seconds
    code = (
        "import os, signal, sys, types\n"
        "sys.modules['caw'] = types.ModuleType('caw'); sys.modules['caw'].__path__ = [sys.argv[1]]\n"
        "from caw.jsonl import JsonlWriter\n"
        "w = JsonlWriter(sys.argv[2])\n"
        "[w.write({'id': i}) for i in range(5)]\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    package = Path(__file__).resolve().parents[1] / "caw"
    done = subprocess.run([sys.executable, "-c", code, str(package), str(path)], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    assert recover(path) == [{"id": i} for i in range(5)]
