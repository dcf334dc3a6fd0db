"""Sealed secrets: they open where they belong, under their master key, and nowhere else."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from caw.registry.master_key import FILE_VARIABLE, VARIABLE, MasterKeys, new_master_key

ONE, TWO = MasterKeys((b"a" * 32,)), MasterKeys((b"b" * 32,))


def test_a_secret_opens_where_it_was_sealed_for() -> None:
    sealed = ONE.seal(b"secret", "key 1 of acme")
    assert ONE.open(sealed, "key 1 of acme") == b"secret"
    assert b"secret" not in base64.b64decode(sealed.rpartition(".")[2])
    assert sealed != ONE.seal(b"secret", "key 1 of acme")  # a nonce of its own
    with pytest.raises(ValueError, match="key 2 of acme cannot be decrypted: the row was damaged or moved"):
        ONE.open(sealed, "key 2 of acme")
    raw = bytearray(base64.b64decode(sealed.rpartition(".")[2]))
    raw[-1] ^= 1
    with pytest.raises(ValueError, match="damaged or moved"):
        ONE.open(sealed.rpartition(".")[0] + "." + base64.b64encode(raw).decode(), "key 1 of acme")


def test_the_first_master_key_seals_and_all_open() -> None:
    sealed = ONE.seal(b"secret", "x")
    both = MasterKeys(TWO.keys + ONE.keys)
    assert both.open(sealed, "x") == b"secret" and not both.is_current(sealed)
    assert both.is_current(both.seal(b"secret", "x"))
    with pytest.raises(
        ValueError, match=f"x is encrypted under master key {ONE.ids[0]}, got {TWO.ids[0]}; add that key"
    ):
        TWO.open(sealed, "x")


def test_master_keys_are_read_from_the_environment_or_a_private_file(tmp_path: Path) -> None:
    first, second = new_master_key(), new_master_key()
    assert len(MasterKeys.read({VARIABLE: f"{first} {second}"}).keys) == 2
    path = tmp_path / "master"
    path.write_text(f"{first}\n{second}\n")
    path.chmod(0o600)
    assert MasterKeys.read({FILE_VARIABLE: str(path)}) == MasterKeys.read({VARIABLE: f"{first} {second}"})
    path.chmod(0o640)
    with pytest.raises(ValueError, match="must be private but is readable by others; run `chmod 600"):
        MasterKeys.read({FILE_VARIABLE: str(path)})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "a master key is required in CAW_MASTER_KEY or in a file named by CAW_MASTER_KEY_FILE, got none"),
        ({VARIABLE: "x", FILE_VARIABLE: "y"}, "got both"),
        ({VARIABLE: "hunter2"}, "CAW_MASTER_KEY must hold 32 bytes in base64, got something else"),
        ({VARIABLE: base64.b64encode(b"short").decode()}, "must hold 32 bytes"),
        ({VARIABLE: "   "}, "a master key must have 32 bytes"),
    ],
)
def test_bad_master_keys_are_refused_without_being_shown(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        MasterKeys.read(environment)
    assert "hunter2" not in str(caught.value)


def test_master_keys_are_in_no_repr() -> None:
    assert "aaaa" not in repr(ONE) and base64.b64encode(b"a" * 32).decode() not in repr(ONE)
