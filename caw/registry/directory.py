"""Tenants and their keys: `caw.serve.contracts.KeyDirectory` over the database.

API keys and the marking key are looked up at every request, so a revocation takes effect at the next request in every
process. The keys for detection, which may be thousands, are reloaded and counted only after one has changed.
"""

import dataclasses
import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

import sqlalchemy as sa

from caw.registry import tables
from caw.registry.api_keys import ApiKeys
from caw.registry.database import Database
from caw.registry.marking_keys import TABLE, MarkingKeys, OpenedKey, current
from caw.serve.contracts import MarkKey, MarkRules, Tenant

LOG = logging.getLogger("caw.serve")
T = TypeVar("T")


class Directory:
    """Thread-safe; one per process. profile: the server's, None = none. only_public: whether no other key may mark."""

    profile: str | None = None
    only_public = False

    def __init__(self, database: Database, marking: MarkingKeys, api: ApiKeys) -> None:
        self._database, self._marking, self._api = database, marking, api
        self._lock = threading.Lock()
        self._kept: dict[str | None, tuple[str, list[OpenedKey]]] = {}
        self._begins: dict[str | None, tuple[str, list[datetime]]] = {}
        self._ruled: set[str] = set()

    def tenant_for(self, bearer: str | None) -> Tenant | None:
        """See `KeyDirectory`. ValueError for a tenant without an active marking key, OSError without a database."""
        if bearer is None:
            return None
        with self._database.reading() as connection:
            api = self._api.holder(connection, bearer)
            if api is None:
                return None
            rules = connection.execute(
                sa.select(tables.tenants.c.rules).where(tables.tenants.c.id == api.tenant)
            ).scalar_one()
            now = self._database.clock()
            begun = sa.and_(TABLE.c.tenant == api.tenant, TABLE.c.revoked.is_(None), TABLE.c.not_before <= now)
            going = sa.or_(TABLE.c.not_after.is_(None), TABLE.c.not_after > now)
            opened = {key.about.id: key for key in self._marking.opened(connection, sa.and_(begun, going))}
            marks = current([key.about for key in opened.values()], now)
            families = [api.tenant, None] if marks is not None and marks.public else [api.tenant]
            tried = max(self._begun(connection, family, now) for family in families)
        if marks is None:
            raise ValueError(
                f"tenant {api.tenant} must have an active marking key, found none; create one with `caw keys create`"
            )
        if self.only_public and not marks.public:
            raise ValueError(f"key {marks.id} of {api.tenant} must be public under profile {self.profile}; create one "
                             "with `caw keys create --public`")  # fmt: skip
        if self.profile is not None and rules is not None and api.tenant not in self._ruled:
            self._ruled.add(api.tenant)
            LOG.warning("the rules of tenant %s replace those of profile %s", api.tenant, self.profile)
        return Tenant(
            api.tenant, opened[marks.id].mark, None if rules is None else MarkRules(**rules), api.may_opt_out, tried
        )

    def detection_keys(self, tenant: Tenant | None) -> Sequence[MarkKey]:
        """See `KeyDirectory`: the tenant's keys or the public ones, including revoked ones, the current one first."""
        name = None if tenant is None else tenant.id
        with self._database.reading() as connection:
            keys = self._cached(self._kept, name, connection, lambda: self._marking.opened(connection, _whose(name)))
        now = self._database.clock()
        begun = [key for key in keys if key.about.not_before <= now]
        begun.sort(key=lambda key: (not key.about.marks_at(now), -key.about.not_before.timestamp()))
        return [key.mark for key in begun]

    def _begun(self, connection: sa.Connection, name: str | None, now: datetime) -> int:
        """Return how many keys of a tenant, or of the public, have started; reloaded only after a change."""
        starts = sa.select(TABLE.c.not_before).where(_whose(name))
        begins = self._cached(self._begins, name, connection, lambda: sorted(connection.execute(starts).scalars()))
        return bisect_right(begins, now)

    def _cached(
        self, cache: dict[str | None, tuple[str, list[T]]], name: str | None, connection: sa.Connection,
        load: Callable[[], list[T]],
    ) -> list[T]:  # fmt: skip
        version = self._database.fact(connection, "changes")
        with self._lock:
            kept, found = cache.get(name, ("", []))
        if kept != version:
            found = load()
            with self._lock:
                cache[name] = (version, found)
        return found


def _whose(name: str | None) -> sa.ColumnElement[bool]:
    """Return the marking keys of a tenant, None = the public ones."""
    return TABLE.c.public.is_(True) if name is None else TABLE.c.tenant == name


def set_rules(database: Database, tenant: str, rules: MarkRules | None) -> None:
    """Set a tenant's rules; None = the server's. ValueError for an unknown tenant."""
    stored = sa.null() if rules is None else dataclasses.asdict(rules)
    with database.writing() as connection:
        done = connection.execute(tables.tenants.update().where(tables.tenants.c.id == tenant).values(rules=stored))
        if not done.rowcount:
            raise ValueError(f"the registry has no tenant {tenant!r}; see `caw keys list`")
