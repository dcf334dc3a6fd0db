"""`caw detect` on texts, lines and ids: the library's result in JSON or for people, bad input, and no model loaded."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli.running import KEY, assert_refused, run
from tiny import tiny_tokenizer

import caw
from caw.cli import detect_command
from caw.models import load_tokenizer

pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture(scope="module")
def marked(model: str) -> str:
    network, tokenizer = caw.load_model(model)
    [text] = caw.generate(network, tokenizer, ["the sky"], watermark=caw.KGW(key=KEY), max_new_tokens=80).texts
    return text


def detect_json(*arguments: str, **settings: Any) -> list[dict[str, Any]]:
    result = run("detect", "--json", *arguments, **settings)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_detect_agrees_with_the_library(model: str, marked: str, tmp_path: Path) -> None:
    expected = caw.detect(marked, load_tokenizer(model), caw.Recommended(key=KEY), fpr=1e-4)
    assert expected.is_watermarked and expected.family == "kgw"
    [line] = detect_json("--text", marked, "--tokenizer", model, "--fpr", "1e-4")
    assert (line["p_value"], line["z_score"]) == (expected.p_value, expected.z_score)
    assert line["is_watermarked"] is True and line["key_id"] == caw.KGW(key=KEY).key_id and "token_ids" not in line
    file = tmp_path / "text.txt"
    file.write_text(marked, encoding="utf-8", newline="")
    assert detect_json(str(file), "--tokenizer", model)[0]["p_value"] == expected.p_value
    assert detect_json("-", "--tokenizer", model, stdin=marked.encode())[0]["p_value"] == expected.p_value


def test_detect_lines_texts_and_ids(model: str, marked: str, tmp_path: Path) -> None:
    source = tmp_path / "texts.jsonl"
    ids = tiny_tokenizer()(marked)["input_ids"]
    source.write_text(
        "".join(json.dumps(x) + "\n" for x in [{"text": marked, "id": "m", "tokens": ids}, {"text": "the sky"}])
    )
    lines = detect_json("--input", str(source), "--tokenizer", model)
    assert [(line["id"], line["is_watermarked"]) for line in lines] == [("m", True), (2, False)]
    result = run("detect", "--input", str(source), "--field", "tokens", "--json")  # ids need no tokenizer
    assert result.exit_code == 1 and "line 2" in result.stderr
    assert json.loads(result.stdout)["p_value"] == (lines[0]["given_p_value"] or lines[0]["p_value"])


def test_several_files(model: str, marked: str, tmp_path: Path) -> None:
    texts = {"one.txt": marked, "two.txt": "the sky", "three.txt": marked}
    files = [str(tmp_path / name) for name in texts]
    for file, text in zip(files, texts.values(), strict=True):
        Path(file).write_text(text, encoding="utf-8", newline="")
    lines, page = detect_json(*files, "--tokenizer", model), tmp_path / "page.html"
    assert [line["id"] for line in lines if line["is_watermarked"]] == [files[0], files[2]] and len(lines) == 3
    result = run("detect", *files, "--tokenizer", model, "--html", str(page))
    assert "2 of 3 texts are watermarked" in result.stdout
    assert all(file in page.read_text() for file in files)
    for more, said in ((files[:1], "each FILE must be given once"), (["x.jsonl"], "give --input for a file with")):
        assert_refused(run("detect", *files, *more, "--tokenizer", model), said)
    assert_refused(run("detect", *files, "--tokenizer", model, "--html", files[2]), "must be another file than")


def test_another_key_than_the_lines_name_is_said(model: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    made = run("generate", "--model", model, "--prompt", "the sky", "--max-new-tokens", "8", "-o", str(out))
    assert made.exit_code == 0, made.stderr
    own, other = caw.KGW(key=KEY).key_id, caw.KGW(key="typo").key_id
    result = run("detect", "--tokenizer", model, "-i", str(out), key="typo")
    assert result.exit_code == 0  # it may be meant: what a key says of texts of others
    assert f"out.jsonl: 1 of the texts were marked with key {own}, tested is {other}; give the key" in result.stderr
    assert run("detect", "--tokenizer", model, "-i", str(out)).stderr == ""


def test_detect_for_people(model: str, marked: str, tmp_path: Path) -> None:
    result = run("detect", "--text", marked, "--tokenizer", model)
    assert result.exit_code == 0 and "watermarked at a false-positive rate of 0.001" in result.stdout
    result = run("detect", "--text", "", "--tokenizer", model)
    assert result.exit_code == 0 and "p = 1" in result.stdout
    source = tmp_path / "texts.jsonl"
    source.write_text(json.dumps({"text": marked}) + "\n" + json.dumps({"text": "[bold]the sky"}) + "\n")
    result = run("detect", "--input", str(source), "--tokenizer", model)
    assert result.exit_code == 0 and "1 of 2 texts are watermarked" in result.stdout


def test_detect_bad_lines(model: str, tmp_path: Path) -> None:
    source = tmp_path / "texts.jsonl"
    source.write_text(
        '{"text": "the sky"}\n{"text": 3}\n{"t": "x"}\n[]\n{"text": [1, -5]}\n{"text": [1, [2]]}\n{"text": [1, 2]}\n'
    )
    result = run("detect", "--input", str(source), "--tokenizer", model, "--json")
    assert result.exit_code == 1
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [1, 7]
    assert [re.search(r"line (\d)", c).group(1) for c in result.stderr.splitlines()] == ["2", "3", "4", "5", "6"]  # type: ignore[union-attr]


def test_of_a_single_text_no_line_is_named(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect_command, "run_detection", lambda task, items: [(item, "it is odd") for item in items])
    lines = tmp_path / "texts.jsonl"
    lines.write_text('{"text": "the sky"}\n')
    for given, said in ((["--text", "the sky"], "it is odd"), (["--input", str(lines)], "line 1: it is odd")):
        result = run("detect", *given, "--tokenizer", model)
        assert result.exit_code == 1 and result.stderr == f"caw: {said}\n" and result.stdout == ""


def test_bad_detect(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, expected in (
        ([], "one of FILE, --text, --input"), (["x.txt", "--text", "x"], "FILE and --text"),
        (["none.txt"], "none.txt"), (["out.jsonl"], "give --input for a file with a text on each line"),
        (["photo.jpg", "--tokenizer", "MODEL"], "UTF-8"), (["--text", "x"], "--tokenizer"),
        (["--text", "x", "--watermark", "none"], "kgw, unigram, exp"), (["--text", "x", "--fpr", "0"], "fpr"),
        (["--text", "x", "--fpr", "2"], "fpr"), (["--text", "x", "--mode", "loose"], "mode"),
        (["--text", "x", "--watermark", "exp", "--gamma", "0.5"], "--gamma"),
    ):  # fmt: skip
        monkeypatch.chdir(tmp_path)
        (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff")
        assert_refused(run("detect", *(model if word == "MODEL" else word for word in arguments)), expected)
