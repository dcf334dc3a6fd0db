"""Compressed files of lines are read where plain ones were, and nothing is guessed about broken or doubled ones."""

import json
import lzma
from pathlib import Path

import pytest

from caw_lab.evaluation import packed_files
from caw_lab.evaluation.packed_files import forms_of, read_lines, to_columns
from caw_lab.evaluation.publishing import write_lines
from caw_lab.evaluation.store import Score, Store

LINES = [{"id": f"q/{i}", "value": i / 3, "of": "0123456789abcdef"} for i in range(50)]


def test_lines_come_back_without_the_digest(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    for old in (path, tmp_path / "some.columns"):
        old.write_text('{"id": "old"}\n')
    write_lines(path, LINES)
    packed = tmp_path / "some.columns.xz"
    assert list(tmp_path.iterdir()) == [packed], "older files go"
    assert read_lines(path) == [{"id": line["id"], "value": line["value"]} for line in LINES]
    before = packed.read_bytes()
    write_lines(path, LINES)
    assert packed.read_bytes() == before and len(before) < 600


@pytest.mark.parametrize("form", ["some.jsonl", "some.columns", "some.columns.xz"])
def test_every_form_is_read(tmp_path: Path, form: str) -> None:
    text = to_columns(LINES) if ".columns" in form else "".join(json.dumps(line) + "\n" for line in LINES).encode()
    (tmp_path / form).write_bytes(lzma.compress(text) if form.endswith(".xz") else text)
    assert read_lines(tmp_path / "some.jsonl") == LINES


def test_both_or_half_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    write_lines(path, LINES)
    path.write_text("{}\n")
    with pytest.raises(
        ValueError, match=r"expected one file .*, found some\.jsonl and some\.columns\.xz; remove the older"
    ):
        read_lines(path)
    path.unlink()
    whole = forms_of(path)[-1].read_bytes()
    for broken in (whole[:-20], b"no xz", b""):
        forms_of(path)[-1].write_bytes(broken)
        with pytest.raises(ValueError, match=r"expected a whole xz file in .*; publish it again"):
            read_lines(path)
    forms_of(path)[-1].write_bytes(lzma.compress(b'{"fields": []}\n'))
    with pytest.raises(ValueError, match=r"some\.columns\.xz: expected columns of .*; publish it again"):
        read_lines(path)
    with pytest.raises(FileNotFoundError):
        read_lines(tmp_path / "none.jsonl")


def test_a_store_reads_compressed_scores(tmp_path: Path) -> None:
    score = Score("m.t.kgw.soft.0", "t/1", "kgw", 0, "none", 1, "model", 0.1 + 0.2, 1.5, 9, 12, of="0123456789abcdef")
    write_lines(tmp_path / "scores.jsonl", [vars(score)])
    [read] = Store(tmp_path).read_scores()
    assert read.p_value == 0.1 + 0.2 and read.identity == score.identity and read.of == ""


def test_lists_have_a_line_for_each_entry(tmp_path: Path) -> None:
    value = {"rows": [{"a": 1.5, "b": ["é", None]}, {"c": []}], "none": [], "n": 1}
    packed_files.write_lists(tmp_path / "x.json", value)
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert text == '{"rows":[\n{"a":1.5,"b":["é",null]},\n{"c":[]}\n],\n"none":[],\n"n":1}\n'
    assert packed_files.read_json(tmp_path / "x.json") == value


def test_an_object_is_kept_in_one_form(tmp_path: Path) -> None:
    path, value = tmp_path / "x.json", {"rows": [{"a": i / 7} for i in range(200)]}
    packed = packed_files.packed_json(path)
    assert packed_files.read_json(path) is None
    for compressed in (False, True, True, False):
        packed_files.write_lists(path, value, packed=compressed)
        assert list(tmp_path.iterdir()) == [packed if compressed else path], "the other form goes"
        assert packed_files.read_json(path) == value
    plain = path.read_bytes()
    packed_files.write_lists(path, value, packed=True)
    assert lzma.decompress(packed.read_bytes()) == plain and packed.stat().st_size < len(plain) / 3


def test_both_or_half_an_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    packed_files.write_lists(path, {"rows": [1, 2]}, packed=True)
    packed, whole = packed_files.packed_json(path), packed_files.packed_json(path).read_bytes()
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"expected one file of this object .*, found x\.json and x\.json\.xz; remove"):
        packed_files.read_json(path)
    path.unlink()
    packed.write_bytes(whole[:-9])
    with pytest.raises(
        ValueError, match=r"expected a whole xz file in .*x\.json\.xz, found something else; publish it"
    ):
        packed_files.read_json(path)
    packed.write_bytes(lzma.compress(b"[]"))
    with pytest.raises(ValueError, match=r"expected a JSON object in .*x\.json\.xz, found something else; remove"):
        packed_files.read_json(path)
