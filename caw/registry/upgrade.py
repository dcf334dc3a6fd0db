"""Upgrades of databases of earlier versions, each in one transaction.

1 -> 2    marking keys store their watermark, and their secrets are bound to it
2 -> 3    rules of tenants are renamed from `found_at` to `detectable_at`

Receipts are signed and stay unchanged: those of formats 1 and 2 have `found` for `detected`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from caw.registry import tables
from caw.registry.database import found_database, utc_now
from caw.registry.marking_keys import TABLE, place
from caw.registry.master_key import MasterKeys

if TYPE_CHECKING:
    from caw.watermarks import Watermark


@dataclass(frozen=True)
class Upgraded:
    """Result of an upgrade. before, after: formats; keys: re-encrypted marking keys."""

    before: str
    after: str
    keys: int


def upgrade_registry(
    url: str, watermark: Watermark, masters: MasterKeys | None = None, *, clock: Callable[[], datetime] = utc_now
) -> Upgraded:
    """Upgrade a registry's tables to this version's format; nothing changes if they have it already.

    Args:
        watermark: of keys whose format does not store one; its own key is ignored.
        masters: as in `open_registry`.

    Raises ValueError for an unknown format, and if a secret cannot be decrypted; OSError if the database cannot be
    used. In these cases nothing has changed.
    """
    masters = MasterKeys.read() if masters is None else masters
    watermark.check_readable()
    database = found_database(url, clock=clock)
    try:
        with database.writing() as connection:
            before = form = database.fact(connection, "schema")
            keys = 0
            while form != tables.SCHEMA:
                if form not in STEPS:
                    raise ValueError(
                        f"{database.name} must have format {' or '.join((*STEPS, tables.SCHEMA))}, found {form}; use "
                        "the version that made it"
                    )
                form, done = STEPS[form](connection, masters, watermark)
                keys += done
            connection.execute(tables.facts.update().where(tables.facts.c.name == "schema").values(value=form))
        return Upgraded(before, form, keys)
    finally:
        database.engine.dispose()


def _add_watermarks(connection: sa.Connection, masters: MasterKeys, watermark: Watermark) -> tuple[str, int]:
    """Return (next format, number of keys): store the watermark with every marking key and re-encrypt its secret."""
    from caw.watermarks.names import said_of

    kind = sa.JSON().compile(connection.dialect)
    # may be null, unlike in a new database: no column can be added that has neither nulls nor a default
    connection.execute(sa.DDL(f"ALTER TABLE {TABLE.name} ADD COLUMN watermark {kind}"))
    said = said_of(watermark)
    rows = connection.execute(sa.select(TABLE.c.id, TABLE.c.tenant, TABLE.c.secret)).all()
    for row in rows:
        where, beside = place(row.tenant, row.id, said)
        sealed = masters.seal(masters.open(row.secret, where), where, beside)
        connection.execute(TABLE.update().where(TABLE.c.id == row.id).values(watermark=said, secret=sealed))
    return "2", len(rows)


def _rename_levels(connection: sa.Connection, masters: MasterKeys, watermark: Watermark) -> tuple[str, int]:
    """(next form, 0): rules get the name that `MarkRules` has."""
    table = tables.tenants
    for row in connection.execute(sa.select(table.c.id, table.c.rules)).all():
        if row.rules is not None and "found_at" in row.rules:
            rules = {"detectable_at" if name == "found_at" else name: value for name, value in row.rules.items()}
            connection.execute(table.update().where(table.c.id == row.id).values(rules=rules))
    return "3", 0


STEPS = {"1": _add_watermarks, "2": _rename_levels}  # by the form that they begin with
