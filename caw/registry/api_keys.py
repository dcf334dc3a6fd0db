"""API keys: bearer tokens of 256 random bits. The database stores only their digests.

A token is caw_<id>_<secret>. Its id finds the row; the digest of the whole token is compared in constant time, also for
an unknown id. A fast hash is enough, because 256 bits cannot be guessed.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from caw.registry import tables
from caw.registry.database import Database
from caw.registry.names import require_moments, require_name

TOKEN = re.compile(r"caw_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
NOBODY = hashlib.sha256(b"").hexdigest()  # what a token of an unknown id is compared with
TABLE = tables.api_keys


@dataclass(frozen=True)
class ApiKey:
    """Public data of an API key. id: of the token. Times are UTC. may_opt_out: whether it may ask for unmarked text."""

    id: str
    tenant: str
    may_opt_out: bool
    created: datetime
    not_after: datetime | None
    revoked: datetime | None

    def valid_at(self, moment: datetime) -> bool:
        return self.revoked is None and (self.not_after is None or moment < self.not_after)

    def state(self, moment: datetime) -> str:
        return "revoked" if self.revoked is not None else "valid" if self.valid_at(moment) else "over"


@dataclass(frozen=True)
class ApiKeys:
    """The API keys of a database."""

    database: Database

    def create(
        self, tenant: str, *, may_opt_out: bool = False, not_after: datetime | None = None
    ) -> tuple[ApiKey, str]:
        """Return (a new key, its token, which is not stored). ValueError without a marking key, for a past expiry."""
        require_name("tenant", tenant)
        require_moments(not_after)
        with self.database.writing() as connection:
            if not_after is not None and not_after <= self.database.clock():
                raise ValueError(
                    f"an API key must expire in the future, got {not_after.isoformat()}; choose a later time"
                )
            known = sa.select(tables.tenants.c.id).where(tables.tenants.c.id == tenant)
            if connection.execute(known).first() is None:
                raise ValueError(f"tenant {tenant} must have a marking key, found none; create it first")
            return self._add(connection, tenant, may_opt_out, not_after)

    def rotate(self, id: str, until: datetime | None = None) -> tuple[ApiKey, ApiKey, str]:
        """Create a key with the same rights, and end the old one at `until` (None = now). Return (old, new, token of
        the new one).

        Raises ValueError for an unknown, revoked or expired key and for an expiry in the past.
        """
        require_moments(until)
        with self.database.writing() as connection:
            now = self.database.clock()
            old = self._known(connection, id)
            if not old.valid_at(now):
                raise ValueError(f"API key {id} must be valid to be rotated, it is {old.state(now)}; create a new one")
            if until is not None and until < now:
                raise ValueError(f"an API key cannot expire in the past, got {until.isoformat()}; leave the time out")
            end = until or now
            if old.not_after is not None and old.not_after < end:
                end = old.not_after
            new, token = self._add(connection, old.tenant, old.may_opt_out, old.not_after)
            connection.execute(TABLE.update().where(TABLE.c.id == id).values(not_after=end))
            return self._known(connection, id), new, token

    def revoke(self, id: str) -> ApiKey:
        """Revoke a key immediately. ValueError for an unknown one."""
        with self.database.writing() as connection:
            fresh = sa.and_(TABLE.c.id == id, TABLE.c.revoked.is_(None))
            connection.execute(TABLE.update().where(fresh).values(revoked=self.database.clock()))
            return self._known(connection, id)

    def every(self, tenant: str | None = None) -> Sequence[ApiKey]:
        """Return all keys, or a tenant's, oldest first."""
        where = sa.true() if tenant is None else TABLE.c.tenant == tenant
        with self.database.reading() as connection:
            return [_shown(row) for row in connection.execute(sa.select(TABLE).where(where).order_by(TABLE.c.created))]

    def holder(self, connection: sa.Connection, token: str) -> ApiKey | None:
        """Return the valid key of a token; None for any other text."""
        found = TOKEN.fullmatch(token)
        row = connection.execute(sa.select(TABLE).where(TABLE.c.id == (found[1] if found else ""))).first()
        same = hmac.compare_digest(digest_of(token), row.digest if row is not None else NOBODY)
        if row is None or not same:
            return None
        key = _shown(row)
        return key if key.valid_at(self.database.clock()) else None

    def _add(
        self, connection: sa.Connection, tenant: str, may_opt_out: bool, not_after: datetime | None
    ) -> tuple[ApiKey, str]:
        id = secrets.token_hex(6)
        token = f"caw_{id}_{secrets.token_urlsafe(32)}"
        row = {"id": id, "tenant": tenant, "digest": digest_of(token), "may_opt_out": may_opt_out,
               "created": self.database.clock(), "not_after": not_after}  # fmt: skip
        connection.execute(TABLE.insert().values(row))
        return self._known(connection, id), token

    def _known(self, connection: sa.Connection, id: str) -> ApiKey:
        row = connection.execute(sa.select(TABLE).where(TABLE.c.id == id)).first()
        if row is None:
            raise ValueError(f"the registry has no API key with id {id!r}; see `caw keys list`")
        return _shown(row)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _shown(row: sa.Row) -> ApiKey:
    return ApiKey(row.id, row.tenant, row.may_opt_out, row.created, row.not_after, row.revoked)
