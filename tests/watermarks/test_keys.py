"""One spelling is one key, wherever it is written."""

import json
from pathlib import Path

import pytest

import caw
from caw.cli.detect_config import read_key_list
from caw.cli.keys_commands import _key_of
from caw.cli.options import build_watermark
from caw.integrations import profiles
from caw.watermarks.keys import parse_key, read_key

# what YAML 1.1, JSON, shells and databases read as something else than the text that stands there
SPELLINGS = (
    "12345", "0", "007", "0755", "0o755", "0xDEADBEEF", "0b1010", "1_000", "1,000", "12:30:45", "190:20:30", "1.5",
    "1.50", "1e3", "1E400", ".5", "+5", "-.inf", ".NaN", "18446744073709551615", "yes", "No", "on", "OFF", "true",
    "False", "y", "2024-01-31", "2024-01-31T10:00:00Z", "=", "<<", "nan", "Infinity", "None", "undefined", "0x", "1__0",
    "a: b", "# no comment", "\u0661\u0662\u0663", "caf\u00e9", "a secret of words",
)  # fmt: skip


@pytest.mark.parametrize("text", SPELLINGS)
def test_a_spelling_is_one_key(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line, the environment, YAML (plain and quoted), a profile's text, variable and file."""
    pytest.importorskip("yaml")
    expected = caw.KGW(parse_key(text)).key_id
    monkeypatch.setenv("HOUSE", text)
    (tmp_path / "key").write_text(text + "\n", encoding="utf-8")
    given = build_watermark("kgw", text, {})
    assert given is not None and given.key_id == caw.KGW(_key_of("HOUSE")).key_id == expected
    for written in ([] if ": " in text or text[0] == "#" else [text]) + [json.dumps(text)]:
        path = tmp_path / "keys.yaml"
        path.write_text(f"watermarks:\n- {{name: a, key_env: HOUSE}}\n- name: b\n  key: {written}\n", encoding="utf-8")
        assert {mark.key_id for mark in read_key_list(path).values()} == {expected}
    (tmp_path / "keys.json").write_text(json.dumps({"watermarks": [{"key": text}]}))
    assert [mark.key_id for mark in read_key_list(tmp_path / "keys.json").values()] == [expected]
    for number, key in enumerate((text, {"env": "HOUSE"}, {"file": str(tmp_path / "key")})):
        said = {"keys": {"a": key}, "profiles": {"a": {"key": "a", "watermark": {"name": "kgw"}}}, "default": "a"}
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(said))
        assert profiles.load(path).profiles["a"].watermark.key_id == expected


@pytest.mark.parametrize("value", [True, 1.5, None, [1], {"a": 1}])
def test_what_is_no_key_is_refused_with_the_way_to_write_it(value: object) -> None:
    with pytest.raises(TypeError, match=r"must be text or an integer, got .*; put it in quotes"):
        read_key(value)
    assert read_key(12345) == read_key("12345") == 12345 and read_key(b"\x01") == b"\x01"


@pytest.mark.parametrize("text", ["", " ", "-1", "18446744073709551616", " a", "a\n", "\u200b", "\ud800"])
def test_a_text_that_would_be_another_key_elsewhere_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"key must|a key of digits") as caught:
        caw.KGW(parse_key(text))
    assert not text.strip() or repr(text) not in str(caught.value)
