"""One database for several processes: serialized transactions, and errors in one sentence."""

import contextlib
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import sqlalchemy as sa

from caw.registry import tables

WAIT = 30  # seconds that a transaction waits for another process
READS = "caw_reads"  # option of a connection that changes nothing
ADVISORY = 0x63617721  # PostgreSQL's lock while tables are made


OPEN = {"host", "hostaddr", "port", "user", "dbname", "sslmode", "mode", "uri"}  # parts of a query that are no secret
EXAMPLES = "sqlite:///keys.db or postgresql+psycopg://user@host/name"
NONE = "{} must be a registry, found none; create the first key with `caw keys create`"


class RefusedError(OSError):
    """The database rejected a row, most likely because one with that name exists."""


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass(frozen=True)
class Database:
    """An engine whose tables exist. clock: returns the current time in UTC."""

    engine: sa.Engine = field(repr=False)
    clock: Callable[[], datetime] = utc_now

    @property
    def name(self) -> str:
        """The URL without its password."""
        return shown_url(self.engine.url)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A read-only connection that does not wait for writers."""
        with naming(self.engine), self.engine.connect() as connection:
            yield connection.execution_options(**{READS: True})

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction that excludes all other writers of any process; durable when the block ends."""
        with naming(self.engine), self.engine.begin() as connection:
            connection.execute(sa.select(tables.facts).where(tables.facts.c.name == "schema").with_for_update())
            yield connection

    def fact(self, connection: sa.Connection, name: str) -> str:
        found = connection.execute(sa.select(tables.facts.c.value).where(tables.facts.c.name == name)).scalar_one()
        assert isinstance(found, str)
        return found

    def changed(self, connection: sa.Connection) -> None:
        """Record that a key changed, so that other processes drop their caches."""
        number = int(self.fact(connection, "changes")) + 1
        connection.execute(tables.facts.update().where(tables.facts.c.name == "changes").values(value=str(number)))


def open_database(url: str, *, create: bool, clock: Callable[[], datetime] = utc_now) -> Database:
    """Open the database of a URL.

    create: create missing tables. Two processes may do so at once.

    Raises OSError if it cannot be reached, ValueError for an invalid URL, an in-memory database, one without tables
    (unless create) and one of another version of this library; ImportError for a missing driver.
    """
    if create:
        engine = make_engine(url, create=True)
        with naming(engine):
            _create(engine, clock)
    else:
        engine = make_engine(url, create=False)
        with naming(engine):
            if not sa.inspect(engine).has_table(tables.facts.name):
                raise ValueError(NONE.format(shown_url(engine.url)))
    database = Database(engine, clock)
    with naming(engine), engine.connect() as connection:
        schema = database.fact(connection, "schema")
    if schema != tables.SCHEMA:
        raise ValueError(
            f"{database.name} must have format {tables.SCHEMA}, found format {schema}; with the version that made it, "
            "export its receipts (`caw audit export`), and import its keys into a new one (`caw keys create --key-env`)"
        )
    return database


def make_engine(url: str, *, create: bool) -> sa.Engine:
    """Create an engine that keeps values out of its messages; create: create the SQLite file, private to its owner."""
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        # its own message would quote the URL, and with it a password
        raise ValueError(f"the registry must be a URL such as {EXAMPLES}, got something else; check it") from None
    if parsed.drivername == "postgres":  # as hosting services write it
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "sqlite":
        try:
            return sa.create_engine(parsed, hide_parameters=True, pool_pre_ping=True)
        except ModuleNotFoundError as error:
            raise ImportError(
                f"{parsed.drivername} requires the package {error.name}, which is not installed; install it, or for "
                "PostgreSQL run `pip install 'caw-watermark[postgres]'` and use postgresql+psycopg://..."
            ) from None
        except (sa.exc.ArgumentError, TypeError, ValueError):  # no such kind of database, or an option it does not have
            kind = parsed.drivername
            raise ValueError(f"the registry must be a URL such as {EXAMPLES}, got one of {kind}; check it") from None
    if not parsed.database or parsed.database == ":memory:":
        raise ValueError("the registry must be durable, got an in-memory database; name a file: sqlite:///keys.db")
    if not create and not os.path.exists(parsed.database):
        raise ValueError(NONE.format(shown_url(parsed)))
    with contextlib.suppress(FileExistsError):
        os.close(os.open(parsed.database, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    engine = sa.create_engine(parsed, hide_parameters=True, connect_args={"timeout": WAIT})
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, record: Any) -> None:
    # the driver must not begin transactions by itself: a reader that turns writer cannot wait for another writer
    connection.isolation_level = None
    _write_ahead(connection)
    for pragma in ("synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _write_ahead(connection: Any) -> None:
    """Switch a new file to a write-ahead log. SQLite does not wait for another that does the same, so this does."""
    end = time.monotonic() + WAIT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > end:
                raise
        time.sleep(0.01)


def _begin_sqlite(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN" if connection.get_execution_options().get(READS) else "BEGIN IMMEDIATE")


def _create(engine: sa.Engine, clock: Callable[[], datetime]) -> None:
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ADVISORY)))
        tables.metadata.create_all(connection)  # those that are there stay as they are
        if connection.execute(sa.select(tables.facts)).first() is None:
            rows = {"schema": tables.SCHEMA, "chain": secrets.token_hex(16), "changes": "0", "checked": ""}
            connection.execute(tables.facts.insert(), [{"name": n, "value": v} for n, v in rows.items()])


def shown_url(url: sa.URL) -> str:
    """A database's URL without its password, and without parts of its query that may hold one."""
    shown = url.set(query={name: value for name, value in url.query.items() if name in OPEN})
    return shown.render_as_string(hide_password=True)


def _without_secrets(text: str, url: sa.URL) -> str:
    """A driver's message without what the URL hides: some quote the options that they were given."""
    hidden = [values for name, values in url.normalized_query.items() if name not in OPEN]
    values = [str(url.password or ""), *(value for values in hidden for value in values)]
    for value in sorted({value for value in values if len(value) > 3}, key=len, reverse=True):
        text = text.replace(value, "***")
    return text


@contextlib.contextmanager
def naming(engine: sa.Engine) -> Iterator[None]:
    """Turn database errors into an OSError in one sentence, without statements or values."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        reason = _without_secrets(str(error.orig).strip().split("\n")[0], engine.url)
        kind = RefusedError if isinstance(error, (sa.exc.IntegrityError, sa.exc.DataError)) else OSError
        raise kind(f"the registry {shown_url(engine.url)} cannot be used: {reason}; fix that and try again") from None
    except sa.exc.TimeoutError:
        raise OSError(
            f"the registry {shown_url(engine.url)} cannot be used: too many calls at once; try again"
        ) from None
