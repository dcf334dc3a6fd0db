"""A custodian outside: a real command derives the keys, and what it refuses or fails to give, nobody gets."""

import json
import shlex
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from registry.samples import begun
from registry.test_sketches import send, text
from serve.serving import Process
from tiny import save_tiny, tiny_model, tiny_tokenizer

import caw
from caw.registry import Registry, custodian, open_registry, tables
from caw.registry.custodian import VARIABLE, Custodian
from caw.registry.master_key import MasterKeys

SCRIPT = """
import base64, hmac, sys
label, refused = sys.argv[-1], sys.argv[2]
print(label, file=open(sys.argv[1], "a"))
if refused and refused in label: sys.exit(3)
print(base64.urlsafe_b64encode(hmac.digest(b"master", label.encode(), "sha256")).decode())
"""
Outside = Callable[..., Registry]


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    (tmp_path / "custodian.py").write_text(SCRIPT)
    return tmp_path / "calls"


@pytest.fixture
def outside(url: str, calls: Path) -> Outside:
    def opened(refused: str = "", day: str = "2026-12-01", keys: tuple[bytes, ...] = ()) -> Registry:
        line = shlex.join([sys.executable, str(calls.with_name("custodian.py")), str(calls), refused])
        masters = MasterKeys(keys, Custodian(MasterKeys.read({VARIABLE: line}).custodian.command, lambda: day))  # type: ignore[union-attr]
        return open_registry(url, masters, create=True)

    return opened


def test_a_custodian_keeps_the_master_key_and_is_asked_once_for_each_key(outside: Outside, calls: Path) -> None:
    registry = outside()
    key = registry.marking.create("acme", public=True)
    send(registry, "one", text(1))
    assert registry.secret == outside().secret
    again = outside(day="2026-12-09")
    for _ in range(3):
        assert list(again.marking.watermarks()) == [key.id] and again.near(text(1))[0]["receipt"] == "one"
    kinds = [f"caw/{kind}/2026-12-01" for kind in ("marking", "sketches", "signing")]
    asked = calls.read_text().split()
    assert asked == [*kinds, *["caw/derived/continuation"] * 2, *kinds[:2]]
    assert again.reseal() == 3 and again.reseal() == 0  # under the keys of one later day
    assert list(outside(refused="12-01").marking.watermarks()) == [key.id]


def test_master_keys_beside_a_custodian_open_what_is_older(outside: Outside, url: str) -> None:
    master = (b"a" * 32,)
    key = open_registry(url, MasterKeys(master), create=True).marking.create("acme")
    with pytest.raises(ValueError, match=r"is encrypted under master key .*, got none"):
        outside().marking.watermarks()
    assert outside(keys=master).reseal() == 1 and list(outside().marking.watermarks()) == [key.id]
    with pytest.raises(ValueError, match="is sealed by a custodian, found none; set CAW_MASTER_KEY_COMMAND"):
        open_registry(url, MasterKeys(master)).marking.watermarks()


def answer(url: str, body: dict[str, str] | None = None, headers: dict[str, str] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    with urllib.request.urlopen(asked) as told:
        return json.load(told)


def test_a_host_that_may_not_sign_tests_texts_and_writes_no_receipt(outside: Outside, url: str, tmp_path: Path) -> None:
    registry, tokenizer = outside(), tiny_tokenizer()
    mark = registry.marking.create("acme", public=True).id
    watermark = registry.marking.watermarks()[mark]
    how: dict[str, Any] = {"max_new_tokens": 150, "min_new_tokens": 150, "progress": False}
    [sent] = caw.generate(tiny_model(len(tokenizer)), tokenizer, ["a"], watermark=watermark, **how).texts
    save_tiny(tmp_path / "small")
    _, token = registry.api.create("acme")
    registry.receipts.check()
    detects = outside(refused="caw/signing/")
    for refused in (detects.receipts.check, lambda: detects.receipts.begin(begun("one"))):
        with pytest.raises(OSError, match="got status 3 for caw/signing/2026-12-01"):
            refused()
    line = shlex.join(detects.marking.masters.custodian.command)  # type: ignore[union-attr]
    options = ("--tokenizer", str(tmp_path / "small"), "--registry", url, "--name", "small")
    with Process(*options, command="serve-detection", **{VARIABLE: line}) as server:
        for bearer in ({}, {"authorization": f"Bearer {token}"}):
            told = answer(server.url + "/v1/detect", {"text": sent}, bearer)
            assert told["verdict"] == "marked"
            assert [each["key_id"] for each in told.get("matches", [])] == ([mark] if bearer else [])
        assert answer(server.url + "/health") == {"status": "ok"}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            answer(server.url + "/v1/completions", {})
        server.stop()


def test_who_writes_to_the_database_chooses_no_argument_of_the_command(outside: Outside, calls: Path) -> None:
    registry = outside()
    registry.marking.create("acme")
    asked = calls.read_text()
    for label in ("--help", "derived/continuation", "marking/2026-12-01; ls", "marking/2026-12-01\n"):
        with registry.database.writing() as connection:
            connection.execute(tables.marking_keys.update().values(secret=sa.literal(f"2.{label}.AAAA")))
        with pytest.raises(ValueError, match="cannot be decrypted: the row was damaged"):
            outside().marking.watermarks()
    assert calls.read_text() == asked


@pytest.mark.parametrize(("command", "message"), [
    ("/no/such/custodian", r"cannot be run \(FileNotFoundError\)"),
    ("sh -c 'setsid sleep 60 & wait'", r"got nothing for caw/marking/\S+ within 0.3 s"),
    ("echo aHVudGVyMg==", r"got \d+ other bytes"), ("echo hunter2 '", "got a line that is none"),
    ("sh -c 'echo hunter2; exit 7'", "got status 7"),
])  # fmt: skip
def test_a_custodian_that_fails_is_one_sentence(
    url: str, command: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custodian, "SECONDS", 0.3)
    begin = time.monotonic()
    with pytest.raises((OSError, ValueError), match=f"{VARIABLE} must name a command.*{message}") as caught:
        open_registry(url, MasterKeys.read({VARIABLE: command}), create=True).marking.create("acme")
    assert "hunter2" not in str(caught.value) and "aHVu" not in str(caught.value)
    assert time.monotonic() - begin < 5
    assert open_registry(url, MasterKeys((b"a" * 32,)), create=True).marking.every() == []
