"""What of a tenant's texts is marked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import sqlalchemy as sa

from caw.registry import tables
from caw.registry.database import Database
from caw.serve.contracts import MarkRules


def set_rules(database: Database, tenant: str, rules: MarkRules | None) -> None:
    """Set a tenant's rules; None = the server's. Raises ValueError for an unknown tenant."""
    stored = sa.null() if rules is None else dataclasses.asdict(rules)
    with database.writing() as connection:
        done = connection.execute(tables.tenants.update().where(tables.tenants.c.id == tenant).values(rules=stored))
        if not done.rowcount:
            raise ValueError(f"expected a tenant of the registry, found none of name {tenant!r}; see `caw keys list`")


def rules_by_tenant(database: Database) -> Mapping[str, MarkRules | None]:
    """The rules of every tenant, by name."""
    with database.reading() as connection:
        rows = connection.execute(sa.select(tables.tenants).order_by(tables.tenants.c.id)).all()
    return {row.id: None if row.rules is None else MarkRules(**row.rules) for row in rows}
