"""A registry of an earlier version: refused with the command that brings it up to date, which loses nothing."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from registry.conftest import Clock
from registry.samples import begun

from caw.registry import Registry, open_registry, tables
from caw.registry.audit import export_lines, verify
from caw.registry.marking_keys import TABLE
from caw.registry.master_key import MasterKeys
from caw.registry.report import count_receipts
from caw.registry.upgrade import Upgraded, upgrade_registry
from caw.serve.contracts import MarkRules
from caw.watermarks import EXP, KGW, SynthID

# written by the version of 22 November 2026: keys 7 and "correct horse", an API key, and a receipt
FORM_1 = Path(__file__).with_name("form_1.sql")
TOKEN = "caw_6bcd18476fe5_sV6QIOJEVVDH38YJ3h5PWViRRck_fJQkA0aIPW1WABo"


@pytest.fixture
def old(tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "old.db") as connection:
        connection.executescript(FORM_1.read_text())
    return f"sqlite:///{tmp_path / 'old.db'}"


def test_a_registry_of_form_1_is_refused_until_it_is_upgraded(old: str, masters: MasterKeys, clock: Clock) -> None:
    for create in (False, True):
        with pytest.raises(ValueError, match="format 3, found format 1; back it up and run `caw keys upgrade`"):
            open_registry(old, masters, create=create)
    mark = KGW(key=1, gamma=0.5)
    assert upgrade_registry(old, mark, masters) == Upgraded("1", "3", 2)
    assert upgrade_registry(old, EXP(key=1), masters) == Upgraded("3", "3", 0)
    registry = open_registry(old, masters, clock=clock)
    found = list(registry.marking.watermarks().values())
    assert {each.secret for each in found} == {mark.with_key(7).secret, mark.with_key("correct horse").secret}
    assert set(found) == {mark.with_key(7), mark.with_key("correct horse")}
    tenant = registry.directory.tenant_for(TOKEN)
    assert tenant is not None and tenant.id == "acme" and tenant.key.key == 7
    assert registry.receipts.resume() == 0
    registry.receipts.begin(begun("two"))
    checked = verify(export_lines(registry.database), registry.receipts.public_keys()[0])
    assert (checked.entries, checked.begun, checked.closed) == (4, 2, 1)
    clock.later(hours=1)
    registry.marking.rotate("acme")
    registry.close()


def test_names_of_before_form_3_are_read(old: str, tmp_path: Path, masters: MasterKeys, clock: Clock) -> None:
    """Rules are renamed; receipts, which are signed, are counted under the name that they have."""
    with sqlite3.connect(tmp_path / "old.db") as connection:
        connection.execute("""UPDATE caw_tenants SET rules = '{"found_at": 0.001, "strict": true}'""")
    upgrade_registry(old, KGW(key=1), masters)
    registry = open_registry(old, masters, clock=clock)
    tenant = registry.directory.tenant_for(TOKEN)
    assert tenant is not None and tenant.rules == MarkRules(detectable_at=0.001, strict=True)
    [counts] = count_receipts(registry)[0].values()
    assert counts["begun"] == counts["complete"] == 1 and counts["open"] == 0
    registry.close()


def test_an_upgrade_that_cannot_be_done_changes_nothing(old: str, masters: MasterKeys) -> None:
    with pytest.raises(ValueError, match="is encrypted under master key"):
        upgrade_registry(old, KGW(key=1), MasterKeys((bytes(32),)))
    with pytest.raises((TypeError, ValueError)):
        upgrade_registry(old, SynthID(key=1, reading="bayesian"), masters)
    with pytest.raises(ValueError, match="format 3, found format 1"):
        open_registry(old, masters)
    assert upgrade_registry(old, KGW(key=1), masters).keys == 2


def test_a_form_that_nobody_knows_is_no_form_to_upgrade(registry: Registry, masters: MasterKeys, url: str) -> None:
    with registry.database.writing() as connection:
        connection.execute(tables.facts.update().where(tables.facts.c.name == "schema").values(value="99"))
    with pytest.raises(ValueError, match="format 1 or 2 or 3, found 99; use the version that made it"):
        upgrade_registry(url, KGW(key=1), masters)


def test_tables_without_their_newest_column_get_it(registry: Registry, masters: MasterKeys, url: str) -> None:
    """On whatever database: what form 1 lacks is taken from a newer registry, and comes back."""
    made = registry.marking.create("acme", key=7)
    with registry.database.writing() as connection:
        place = f"marking key {made.id} of acme"
        connection.execute(sa.DDL(f"ALTER TABLE {TABLE.name} DROP COLUMN watermark"))
        connection.execute(sa.update(TABLE).values(secret=masters.seal((7).to_bytes(8, "big"), place)))
        connection.execute(tables.facts.update().where(tables.facts.c.name == "schema").values(value="1"))
    assert upgrade_registry(url, EXP(key=1, top_k=3), masters).keys == 1
    assert registry.marking.watermarks() == {made.id: EXP(key=7, top_k=3)}
