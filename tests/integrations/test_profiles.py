"""Files of keys and profiles."""

import json
from pathlib import Path

import pytest
from integrations.profile_file import FILE

import caw
from caw.integrations import profiles
from caw.integrations.profiles import load
from caw.watermarks.keys import parse_key


def test_keys_are_read_and_never_shown(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("12345\n")
    said = {**FILE, "keys": {"house": {"file": str(tmp_path / "key")}, "other": "text"}}
    installed.write_text(json.dumps(said))
    read = load(installed)
    assert read.profiles["kgw"].watermark == caw.KGW(12345, delta=3.0)
    assert read.profiles["exp"].watermark == caw.EXP("text", top_k=20)
    assert "12345" not in repr(read) and "text" not in repr(read)
    assert str(read).startswith(f"caw marks by kgw (kgw, key {caw.KGW(12345).key_id}), exp (exp, key ")
    assert str(read).endswith("; without caw_profile: kgw; a request may choose 'off' and is not marked")


def test_keys_of_a_registry(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sqlalchemy")
    from caw.registry import open_registry

    monkeypatch.setenv("CAW_MASTER_KEY", "0" * 43 + "=")
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    registry = open_registry(url, create=True)
    registry.marking.create("acme", key=77, watermark=caw.Unigram(key=1, gamma=0.5))
    registry.close()
    said = {"keys": {"acme": {"registry": url, "tenant": "acme"}}, "profiles": {"acme": {"key": "acme"}}}
    installed.write_text(json.dumps({**said, "default": "acme"}))
    assert load(installed).profiles["acme"].watermark == caw.Unigram(77, gamma=0.5)
    other = {"acme": {"key": "acme", "watermark": {"name": "kgw"}}}
    installed.with_name("b.json").write_text(json.dumps({**said, "profiles": other, "default": "acme"}))
    with pytest.raises(ValueError, match="watermark must be the one of the registry's key"):
        load(installed.with_name("b.json"))


@pytest.mark.parametrize("text", ["42", "007", "٤٢", "a secret"])
def test_a_key_is_the_one_that_the_command_line_reads(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other digits than 0 to 9 are text, or texts would be marked under a key that `caw detect` does not try."""
    monkeypatch.setenv("HOUSE_KEY", text)
    assert caw.KGW(profiles._secret({"env": "HOUSE_KEY"})).key == caw.KGW(parse_key(text)).key
