"""An open registry: everything that works on its database, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from caw.registry.api_keys import ApiKeys
from caw.registry.database import Database, open_database, utc_now
from caw.registry.directory import Directory
from caw.registry.marking_keys import MarkingKeys
from caw.registry.master_key import MasterKeys
from caw.registry.receipt_log import ReceiptLog, reseal_signers
from caw.registry.sketches import near, sketcher


@dataclass(frozen=True)
class Registry:
    """The parts of a registry. directory and receipts implement the server's contracts, see `caw.serve.contracts`."""

    database: Database
    marking: MarkingKeys
    api: ApiKeys
    directory: Directory
    receipts: ReceiptLog

    @property
    def secret(self) -> bytes:
        """Secret by which servers of this registry recognise their texts (`caw.serve.continuing`)."""
        return self.marking.masters.derived(b"continuation")

    def sketcher(self) -> Callable[[str], bytes]:
        return sketcher(self.database, self.marking.masters)

    def near(self, text: str, tenant: str | None = None) -> list[dict[str, Any]]:
        return near(self.database, self.marking.masters, text, tenant)

    def reseal(self) -> int:
        """Re-encrypt every secret under the first master key, all or none; return how many were under another."""
        with self.database.writing() as connection:
            return self.marking.reseal(connection) + reseal_signers(connection, self.marking.masters)

    def close(self) -> None:
        self.database.engine.dispose()


def open_registry(
    url: str, masters: MasterKeys | None = None, *, create: bool = False, clock: Callable[[], datetime] = utc_now
) -> Registry:
    """Open the registry of a database.

    Args:
        url: any SQLAlchemy URL: sqlite:///keys.db, postgresql+psycopg://user@host/name.
        masters: its master keys; None = those of CAW_MASTER_KEY or CAW_MASTER_KEY_FILE.
        create: create missing tables.
        clock: returns the current time in UTC.

    Raises ValueError, OSError or ImportError in one sentence, without passwords or secrets.
    """
    masters = MasterKeys.read() if masters is None else masters
    database = open_database(url, create=create, clock=clock)
    marking, api = MarkingKeys(database, masters), ApiKeys(database)
    return Registry(database, marking, api, Directory(database, marking, api), ReceiptLog(database, masters))
