"""Databases that earlier versions made, brought to the present form: all of it in one transaction, or nothing.

1 -> 2    marking keys know their watermark, and their secrets are bound to it
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
    """What was done. before, after: forms of the tables; keys: marking keys that were sealed anew."""

    before: str
    after: str
    keys: int


def upgrade_registry(
    url: str, watermark: Watermark, masters: MasterKeys | None = None, *, clock: Callable[[], datetime] = utc_now
) -> Upgraded:
    """Bring a registry's tables to this version's form; nothing is changed where they have it already.

    Args:
        watermark: with which keys marked whose form does not say it, under whatever key.
        masters: as in `open_registry`.

    Raises ValueError for a form that this version does not know, and where a secret does not open; OSError where the
    database cannot be used. Then nothing has changed.
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
                        f"{database.name} must hold tables of form {' or '.join((*STEPS, tables.SCHEMA))}, found "
                        f"{form}; use the version that made it"
                    )
                form, done = STEPS[form](connection, masters, watermark)
                keys += done
            connection.execute(tables.facts.update().where(tables.facts.c.name == "schema").values(value=form))
        return Upgraded(before, form, keys)
    finally:
        database.engine.dispose()


def _add_watermarks(connection: sa.Connection, masters: MasterKeys, watermark: Watermark) -> tuple[str, int]:
    """(next form, keys): every marking key gets the watermark, and its secret is sealed for it."""
    from caw.watermarks.registry import said_of

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


STEPS = {"1": _add_watermarks}  # by the form that they begin with
