"""Marking keys: windows, rotation, revocation, and secrets that stay sealed."""

import base64
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest
from registry.conftest import START, Clock

from caw.policies.recommended import Recommended
from caw.registry import Registry, open_registry
from caw.registry.marking_keys import current
from caw.registry.master_key import FILE_VARIABLE, VARIABLE, MasterKeys, new_master_key
from caw.watermarks import EXP, KGW, SynthID
from caw.watermarks.keys import key_id

HOUR = timedelta(hours=1)


def secret_of(registry: Registry, id: str) -> int:
    with registry.database.reading() as connection:
        from caw.registry.marking_keys import TABLE

        [opened] = registry.marking.opened(connection, TABLE.c.id == id)
    assert isinstance(opened.mark.key, int)
    return opened.mark.key


def test_the_id_is_the_key_id_of_the_watermark(registry: Registry) -> None:
    made = registry.marking.create("acme", key="a secret")
    assert made.id == KGW(key="a secret").key_id == key_id(secret_of(registry, made.id))
    random = [registry.marking.create("acme") for _ in range(5)]
    assert len({secret_of(registry, key.id) for key in random}) == 5
    assert all(KGW(key=secret_of(registry, key.id)).key_id == key.id for key in random)


def test_windows_say_which_key_marks(registry: Registry, clock: Clock) -> None:
    first = registry.marking.create("acme", not_after=START + 2 * HOUR)
    second = registry.marking.create("acme", not_before=START + HOUR, not_after=START + 3 * HOUR)
    keys = registry.marking.every("acme")
    marks = [current(keys, START + n * HOUR) for n in range(4)]
    assert [key and key.id for key in marks] == [first.id, second.id, second.id, None]
    assert current(keys, START - HOUR) is None
    assert [first.state(START + n * HOUR) for n in (-1, 0, 2)] == ["waiting", "valid", "over"]


def test_rotation_ends_the_old_key_where_the_new_one_begins(registry: Registry, clock: Clock) -> None:
    first = registry.marking.create("acme", public=True, not_after=START + 9 * HOUR)
    clock.later(hours=1)
    old, new = registry.marking.rotate("acme")
    assert old.id == first.id and old.not_after == new.not_before == clock.now
    assert new.public and new.not_after == START + 9 * HOUR and new.id != old.id
    later = clock.now + HOUR
    _, planned = registry.marking.rotate(new.id, at=later)
    keys = registry.marking.every("acme")
    assert [current(keys, at).id for at in (START, clock.now, later)] == [old.id, new.id, planned.id]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="a rotation cannot be in the past"):
        registry.marking.rotate("acme", at=START)
    with pytest.raises(ValueError, match="nobody must have an active key at"):
        registry.marking.rotate("nobody")


def test_a_revoked_key_never_marks_again(registry: Registry, clock: Clock) -> None:
    first = registry.marking.create("acme")
    clock.later(hours=1)
    second = registry.marking.create("acme")
    revoked = registry.marking.revoke(second.id)
    assert revoked.revoked == clock.now and current(registry.marking.every("acme"), clock.now) == first
    clock.later(hours=1)
    assert registry.marking.revoke(second.id).revoked == revoked.revoked  # the first time stays
    assert registry.marking.revoke(first.id).state(START) == "revoked"
    assert current(registry.marking.every("acme"), clock.now) is None
    with pytest.raises(ValueError, match="no marking key with id 'ffffffff'"):
        registry.marking.revoke("ffffffff")


@pytest.mark.parametrize("tenant", ["", "a/b", "-x", "a" * 64, "x\ny", "<b>", 3])
def test_names_are_plain(registry: Registry, tenant: str) -> None:
    with pytest.raises(ValueError, match="tenant must be 1 to 63 letters"):
        registry.marking.create(tenant)


def test_what_cannot_be_is_refused_and_leaves_nothing(registry: Registry) -> None:
    registry.marking.create("acme", key=7)
    before = registry.marking.every()
    with pytest.raises(ValueError, match=f"the registry has a key with id {key_id(7)}"):
        registry.marking.create("other", key=7)
    with pytest.raises(ValueError, match="a key must end after its start"):
        registry.marking.create("other", not_after=START)
    with pytest.raises(ValueError, match="a time must have an offset from UTC, got 2027-01-01T00:00:00"):
        registry.marking.create("other", not_before=START.replace(year=2027, month=1, day=1, hour=0, tzinfo=None))
    assert registry.marking.every() == before
    with pytest.raises(ValueError, match="tenant other must have a marking key"):
        registry.api.create("other")  # the failed calls made no tenant


def test_no_secret_is_in_the_database_or_in_a_repr(registry: Registry, tmp_path: Path) -> None:
    secret = 0x5EC2E7_5EC2E7_5E
    made = registry.marking.create("acme", key=secret)
    _, token = registry.api.create("acme")
    tenant = registry.directory.tenant_for(token)
    registry.receipts.check()
    registry.database.engine.dispose()
    content = b"".join(path.read_bytes() for path in tmp_path.glob("keys.db*"))
    for form in (str(secret).encode(), secret.to_bytes(8, "big"), secret.to_bytes(8, "little"), b"%x" % secret):
        assert form not in content
    assert token.encode() not in content and token.split("_", 2)[2].encode() not in content
    shown = repr(registry) + repr(made) + repr(tenant) + repr(registry.directory.detection_keys(tenant))
    assert str(secret) not in shown and token not in shown
    assert (tmp_path / "keys.db").stat().st_mode & 0o077 == 0


def test_a_secret_moved_to_another_row_does_not_open(registry: Registry, tmp_path: Path) -> None:
    """Who writes to the database cannot give one tenant's key to another."""
    one, two = registry.marking.create("acme"), registry.marking.create("evil")
    with sqlite3.connect(tmp_path / "keys.db") as connection:
        stolen = connection.execute("SELECT secret FROM caw_marking_keys WHERE id = ?", (one.id,)).fetchone()
        connection.execute("UPDATE caw_marking_keys SET secret = ? WHERE id = ?", (*stolen, two.id))
    with pytest.raises(ValueError, match=f"marking key {two.id} of evil cannot be decrypted"):
        secret_of(registry, two.id)


def test_a_key_keeps_its_watermark_for_good(registry: Registry, clock: Clock, tmp_path: Path) -> None:
    """Rotation keeps it, and who changes it in the database closes the key: texts would be tested otherwise."""
    mark = EXP(key=0, top_k=3, context_width=2)
    first = registry.marking.create("acme", key=5, watermark=mark)
    clock.later(hours=1)
    _, second = registry.marking.rotate("acme")
    other = registry.marking.create("globex", key=6)
    found = registry.marking.watermarks()
    assert found[first.id] == mark.with_key(5) and found[second.id] == mark.with_key(secret_of(registry, second.id))
    assert found[other.id] == KGW(key=6) and set(registry.marking.watermarks("acme")) == {first.id, second.id}
    with pytest.raises(ValueError, match="tenant 'nobody' must have marking keys, found none"):
        registry.marking.watermarks("nobody")
    foreign = KGW(key=1, format="transformers", vocab_size=500)
    for number in range(8):  # half of the keys of 64 bits are none of theirs
        assert registry.marking.create(f"other-{number}", watermark=foreign).watermark["vocab_size"] == 500
    with pytest.raises(ValueError, match=r"requires a key below 2\*\*63"):
        registry.marking.create("acme", key=1 << 63, watermark=foreign)
    text = registry.marking.create("acme", key="text", watermark=SynthID(key=1, depth=5))
    assert registry.marking.watermarks()[text.id] == SynthID(key="text", depth=5)
    both = registry.marking.create("both", key=7, watermark=Recommended(0, target=1e-4))
    assert registry.marking.watermarks("both") == {both.id: Recommended(7, target=1e-4)}
    with pytest.raises(ValueError, match="vocab_size"):
        registry.marking.create("acme", watermark=KGW(key=1, format="transformers"))
    with sqlite3.connect(tmp_path / "keys.db") as connection:
        connection.execute('UPDATE caw_marking_keys SET watermark = \'{"name":"kgw"}\' WHERE id = ?', (first.id,))
    with pytest.raises(ValueError, match=f"marking key {first.id} of acme cannot be decrypted"):
        registry.marking.watermarks("acme")


def test_master_keys_rotate(registry: Registry, masters: MasterKeys, url: str) -> None:
    ids = [registry.marking.create("acme").id for _ in range(3)]
    secrets = [secret_of(registry, id) for id in ids]
    registry.receipts.check()  # makes a signing key, which is sealed too
    new = MasterKeys((b"n" * 32,))
    both = open_registry(url, MasterKeys(new.keys + masters.keys))
    assert both.reseal() == 4 and both.reseal() == 0
    only = open_registry(url, new)
    assert [secret_of(only, id) for id in ids] == secrets
    only.receipts.check()
    with pytest.raises(ValueError, match="encrypted under master key"):
        secret_of(registry, ids[0])
    for opened in (both, only):
        opened.close()


# Master keys ---------------------------------------------------------------------------------------------------------


def test_a_sealed_secret_is_another_each_time_and_opens_only_unchanged(masters: MasterKeys) -> None:
    sealed = masters.seal(b"secret", "key 1 of acme")
    assert masters.open(sealed, "key 1 of acme") == b"secret" and sealed != masters.seal(b"secret", "key 1 of acme")
    head, _, content = sealed.rpartition(".")
    raw = bytearray(base64.b64decode(content))
    raw[-1] ^= 1
    with pytest.raises(ValueError, match="key 1 of acme cannot be decrypted: the row was damaged or moved"):
        masters.open(f"{head}.{base64.b64encode(raw).decode()}", "key 1 of acme")


def test_master_keys_are_read_from_the_environment_or_a_private_file(tmp_path: Path) -> None:
    first, second = new_master_key(), new_master_key()
    both = MasterKeys.read({VARIABLE: f"{first} {second}"})
    assert len(both.keys) == 2 and first not in repr(both) and repr(both.keys[0]) not in repr(both)
    path = tmp_path / "master"
    path.write_text(f"{first}\n{second}\n")
    path.chmod(0o600)
    assert MasterKeys.read({FILE_VARIABLE: str(path)}) == both
    path.chmod(0o640)
    with pytest.raises(ValueError, match="must be private but is readable by others; run `chmod 600"):
        MasterKeys.read({FILE_VARIABLE: str(path)})


@pytest.mark.parametrize(("environment", "message"), [
    ({}, "a master key is required in CAW_MASTER_KEY or in a file named by CAW_MASTER_KEY_FILE, got none"),
    ({VARIABLE: "x", FILE_VARIABLE: "y"}, "got both"),
    ({VARIABLE: "hunter2"}, "CAW_MASTER_KEY must hold 32 bytes in base64, got something else"),
    ({VARIABLE: base64.b64encode(b"short").decode()}, "must hold 32 bytes"),
    ({VARIABLE: "   "}, "a master key must have 32 bytes"),
])  # fmt: skip
def test_bad_master_keys_are_refused_without_being_shown(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        MasterKeys.read(environment)
    assert "hunter2" not in str(caught.value)
