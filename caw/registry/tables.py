"""The database tables. They contain no unencrypted secrets and no texts."""

from datetime import datetime, timezone
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, DateTime, ForeignKey, Integer, String, Table, Text

SCHEMA = "4"  # raised with every change of a table or of what a watermark is described by
NAME = 64  # longest id


class UtcTime(sa.TypeDecorator[datetime]):
    """A time; stored in UTC without its zone, because not every database supports zones."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        return None if value is None else value.astimezone(timezone.utc).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        return None if value is None else value.replace(tzinfo=timezone.utc)


metadata = sa.MetaData()

# schema: of these tables. chain: random, names this log in every receipt. changes: raised with every change of a key
facts = Table("caw_facts", metadata, Column("name", String(NAME), primary_key=True), Column("value", Text))

tenants = Table(
    "caw_tenants",
    metadata,
    Column("id", String(NAME), primary_key=True),
    Column("rules", sa.JSON),  # arguments of MarkRules; null = the server's
    Column("created", UtcTime, nullable=False),
)

marking_keys = Table(
    "caw_marking_keys",
    metadata,
    Column("id", String(NAME), primary_key=True),
    Column("tenant", ForeignKey(tenants.c.id), nullable=False, index=True),
    Column("secret", Text, nullable=False),  # sealed
    Column("watermark", sa.JSON, nullable=False),  # with which it marks: its name and arguments
    Column("public", sa.Boolean, nullable=False),  # whether anyone may ask for its mark
    Column("created", UtcTime, nullable=False),
    Column("not_before", UtcTime, nullable=False),
    Column("not_after", UtcTime),
    Column("revoked", UtcTime),
)

api_keys = Table(
    "caw_api_keys",
    metadata,
    Column("id", String(NAME), primary_key=True),
    Column("tenant", ForeignKey(tenants.c.id), nullable=False, index=True),
    Column("digest", String(64), nullable=False),  # SHA-256 of the token
    Column("may_opt_out", sa.Boolean, nullable=False),
    Column("created", UtcTime, nullable=False),
    Column("not_after", UtcTime),
    Column("revoked", UtcTime),
)

# and the key of sketches
signing_keys = Table(
    "caw_signing_keys",
    metadata,
    Column("id", String(NAME), primary_key=True),
    Column("secret", Text, nullable=False),  # sealed
    Column("created", UtcTime, nullable=False),
)

# append only. text: digest of the text, where it is known
receipts = Table(
    "caw_receipts",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("kind", String(NAME), nullable=False),
    Column("receipt", String(NAME), nullable=False),
    Column("text", String(64), index=True),
    Column("content", Text, nullable=False),  # JSON, what the digest is of
    Column("digest", String(64), nullable=False),
    Column("signing_key", String(NAME), nullable=False),
    Column("signature", String(128), nullable=False),
    sa.UniqueConstraint("receipt", "kind"),
)

# of the texts of closed receipts, where there are any: see `caw.registry.sketches`
sketches = Table(
    "caw_sketches", metadata, Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("sketch", sa.LargeBinary, nullable=False),
)  # fmt: skip
bands = Table(
    "caw_bands", metadata, Column("band", sa.BigInteger, primary_key=True),
    Column("sequence", Integer, primary_key=True), sqlite_with_rowid=False,
)  # fmt: skip
