"""Marking keys: created, rotated, revoked, and never deleted, because their texts must remain detectable.

A tenant's active key is, of those that are not revoked and are valid at this moment, the one whose validity started
last. A revoked key never marks again, but still detects.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from caw.registry import tables
from caw.registry.chain import canonical
from caw.registry.database import Database
from caw.registry.master_key import MasterKeys
from caw.registry.names import require_moments, require_name
from caw.serve.contracts import MarkKey

if TYPE_CHECKING:  # PyTorch takes a second, and only new keys and those that read need it
    from caw.watermarks import Signature

BYTES = 8  # of a secret
TRIES = 8  # of a random key whose id is taken
TABLE = tables.marking_keys


@dataclass(frozen=True)
class MarkingKey:
    """Public data of a key. id: eight hex digits, the key_id of receipts and detectors. Times are in UTC.

    watermark: its name and arguments. not_before, not_after: it may mark from the first until, not at, the second; None
    = no end. public: whether anyone may test for its mark. revoked: time of its revocation, which overrides its
    validity.
    """

    id: str
    tenant: str
    watermark: Mapping[str, Any]
    public: bool
    created: datetime
    not_before: datetime
    not_after: datetime | None
    revoked: datetime | None

    def marks_at(self, moment: datetime) -> bool:
        ended = self.not_after is not None and moment >= self.not_after
        return self.revoked is None and self.not_before <= moment and not ended

    def state(self, moment: datetime) -> str:
        if self.revoked is not None:
            return "revoked"
        if moment < self.not_before:
            return "waiting"
        return "valid" if self.marks_at(moment) else "over"


@dataclass(frozen=True)
class OpenedKey:
    """A key with its secret, which is not in its repr."""

    about: MarkingKey
    mark: MarkKey = field(repr=False)


@dataclass(frozen=True)
class MarkingKeys:
    """The marking keys of a database."""

    database: Database
    masters: MasterKeys

    def create(
        self, tenant: str, *, key: int | str | bytes | None = None, not_before: datetime | None = None,
        not_after: datetime | None = None, public: bool = False, watermark: Signature | None = None,
    ) -> MarkingKey:  # fmt: skip
        """Create a key of a tenant, who is created if new.

        Args:
            key: None = random. not_before, not_after: its validity; None = from now on, without end.
            public: whether anyone may test for its mark. watermark: its watermark, under this key; None = KGW.

        Raises ValueError for an empty validity period, for a key that is in the registry already, and for a watermark
        whose texts could not be detected from its stored parameters.
        """
        from caw.watermarks import KGW

        mark = KGW(key=1) if watermark is None else watermark
        mark.check_readable()
        require_name("tenant", tenant)
        require_moments(not_before, not_after)
        with self.database.writing() as connection:
            now = self.database.clock()
            self._add_tenant(connection, tenant, now)
            return self._add(connection, tenant, key, (not_before or now, not_after), public, mark)

    def rotate(self, name: str, at: datetime | None = None) -> tuple[MarkingKey, MarkingKey]:
        """Replace a tenant's current key by a new random key from `at` (None = now). Return (old, new).

        name: of the tenant, or id of the key. ValueError if none is active at that moment.
        """
        from caw.watermarks.names import watermark_from

        require_moments(at)
        with self.database.writing() as connection:
            now = self.database.clock()
            at = at or now
            if at < now:
                raise ValueError(f"a rotation cannot be in the past, got {at.isoformat()}; leave the time out for now")
            found = self._rows(connection, TABLE.c.tenant == name) or self._rows(connection, TABLE.c.id == name)
            old = current(found, at)
            if old is None:
                raise ValueError(f"{name} must have an active key at {at.isoformat()}, found none; create one")
            if old.not_before >= at:
                raise ValueError(
                    f"key {old.id} starts at {old.not_before.isoformat()}, got a rotation at that moment; choose a "
                    "later time"
                )
            mark = watermark_from(old.watermark, 1)
            new = self._add(connection, old.tenant, None, (at, old.not_after), old.public, mark)
            connection.execute(TABLE.update().where(TABLE.c.id == old.id).values(not_after=at))
            [old] = self._rows(connection, TABLE.c.id == old.id)
            return old, new

    def revoke(self, id: str) -> MarkingKey:
        """Revoke a key permanently; the time of the first revocation stays. ValueError for an unknown one."""
        with self.database.writing() as connection:
            now = self.database.clock()
            fresh = sa.and_(TABLE.c.id == id, TABLE.c.revoked.is_(None))
            connection.execute(TABLE.update().where(fresh).values(revoked=now))
            found = self._rows(connection, TABLE.c.id == id)
            if not found:
                raise ValueError(f"the registry has no marking key with id {id!r}; see `caw keys list`")
            self.database.changed(connection)
            return found[0]

    def every(self, tenant: str | None = None) -> Sequence[MarkingKey]:
        """Return all keys, or a tenant's, oldest first."""
        with self.database.reading() as connection:
            return self._rows(connection, sa.true() if tenant is None else TABLE.c.tenant == tenant)

    def opened(self, connection: sa.Connection, where: sa.ColumnElement[bool]) -> list[OpenedKey]:
        """Return keys with their secrets, oldest first. ValueError if one cannot be decrypted."""
        rows = connection.execute(sa.select(TABLE).where(where).order_by(TABLE.c.not_before, TABLE.c.id)).all()
        opened = []
        for row in rows:
            secret = self.masters.open(row.secret, *place(row.tenant, row.id, row.watermark))
            opened.append(OpenedKey(_shown(row), MarkKey(row.id, int.from_bytes(secret, "big"), row.watermark)))
        return opened

    def watermarks(self, tenant: str | None = None) -> dict[str, Signature]:
        """Return, by key id, all watermarks that may have marked a text of a tenant, or of all tenants, including old
        and revoked ones.

        Raises ValueError if there is none.
        """
        from caw.watermarks.names import watermark_from

        begun = TABLE.c.not_before <= self.database.clock()
        where = begun if tenant is None else sa.and_(begun, TABLE.c.tenant == tenant)
        with self.database.reading() as connection:
            opened = self.opened(connection, where)
        if not opened:
            whose = "the registry" if tenant is None else f"tenant {tenant!r}"
            raise ValueError(f"{whose} must have marking keys, found none; see `caw keys list`")
        return {key.about.id: watermark_from(key.mark.watermark, key.mark.key) for key in opened}

    def reseal(self, connection: sa.Connection) -> int:
        """Re-encrypt every secret under the first master key; return how many were under another."""
        old = [row for row in connection.execute(sa.select(TABLE)).all() if not self.masters.is_current(row.secret)]
        for row in old:
            where = place(row.tenant, row.id, row.watermark)
            sealed = self.masters.seal(self.masters.open(row.secret, *where), *where)
            connection.execute(TABLE.update().where(TABLE.c.id == row.id).values(secret=sealed))
        return len(old)

    def _add_tenant(self, connection: sa.Connection, tenant: str, now: datetime) -> None:
        known = sa.select(tables.tenants.c.id).where(tables.tenants.c.id == tenant)
        if connection.execute(known).first() is None:
            connection.execute(tables.tenants.insert().values(id=tenant, created=now))

    def _add(
        self, connection: sa.Connection, tenant: str, key: int | str | bytes | None,
        window: tuple[datetime, datetime | None], public: bool, mark: Signature,
    ) -> MarkingKey:  # fmt: skip
        begin, end = window
        if end is not None and end <= begin:
            raise ValueError(
                f"a key must end after its start, got {begin.isoformat()} to {end.isoformat()}; choose a later end"
            )
        from caw.watermarks.names import said_of

        secret, id = self._unused(connection, key, mark)
        said = said_of(mark)
        sealed = self.masters.seal(secret.to_bytes(BYTES, "big"), *place(tenant, id, said))
        row = {"id": id, "tenant": tenant, "secret": sealed, "watermark": said, "public": public,
               "created": self.database.clock(), "not_before": begin, "not_after": end}  # fmt: skip
        connection.execute(TABLE.insert().values(row))
        self.database.changed(connection)
        [made] = self._rows(connection, TABLE.c.id == id)
        return made

    def _unused(self, connection: sa.Connection, key: int | str | bytes | None, mark: Signature) -> tuple[int, str]:
        """Return (a secret, its id) with an id new to the registry: ids have 32 bits, so two keys may share one."""
        from caw.watermarks.keys import key_id, normalize_key

        for _ in range(TRIES):
            # other systems hold keys with a sign
            secret = secrets.randbits(8 * BYTES - mark.foreign) if key is None else normalize_key(key)
            mark.with_key(secret)  # refuses a key that it cannot have
            id = key_id(secret)
            if not self._rows(connection, TABLE.c.id == id):
                return secret, id
            if key is not None:
                break
        raise ValueError(f"the registry has a key with id {id} already; leave the key out for a random one")

    def _rows(self, connection: sa.Connection, where: sa.ColumnElement[bool]) -> list[MarkingKey]:
        rows = connection.execute(sa.select(TABLE).where(where).order_by(TABLE.c.not_before, TABLE.c.id)).all()
        return [_shown(row) for row in rows]


def current(keys: Sequence[MarkingKey], moment: datetime) -> MarkingKey | None:
    marking = [key for key in keys if key.marks_at(moment)]
    return max(marking, key=lambda key: (key.not_before, key.created, key.id)) if marking else None


def place(tenant: str, id: str, said: Mapping[str, Any]) -> tuple[str, str]:
    """Return a sealed secret's associated data, with its watermark: changing that makes the key unreadable."""
    return f"marking key {id} of {tenant}", canonical(said)


def _shown(row: sa.Row) -> MarkingKey:
    return MarkingKey(
        row.id, row.tenant, row.watermark, row.public, row.created, row.not_before, row.not_after, row.revoked
    )  # fmt: skip
