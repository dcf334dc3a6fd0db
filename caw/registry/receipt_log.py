"""The receipt log: `caw.serve.contracts.ReceiptLog` over the database.

A commit waits for the disk. Threads that arrive during a commit share the next one, so a hundred texts that start at
once cost a few commits, not a hundred. Writers of all processes take turns, so there is one chain.

A killed process leaves its open receipts open: a started text has its entry, and its end is unknown. Closed receipts
stay closed. Each kind of entry is written at most once per receipt.
"""

import dataclasses
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from caw.registry import tables
from caw.registry.audit import verify_end
from caw.registry.chain import BEGUN, CLOSED, KEY, Entry, Signer, canonical
from caw.registry.database import Database, RefusedError
from caw.registry.master_key import MasterKeys
from caw.registry.sketches import add_sketch
from caw.serve.contracts import Begun, Closed

TABLE = tables.receipts


@dataclass
class _Waiting:
    """An entry to write, and its outcome."""

    kind: str
    receipt: str
    fields: dict[str, Any]
    sketch: bytes = b""
    done: bool = False
    error: BaseException | None = None


@dataclass(frozen=True)
class Handle:
    """An open receipt; see `ReceiptHandle`."""

    id: str
    log: "ReceiptLog" = field(repr=False)

    def close(self, closed: Closed) -> None:
        self.log.append(CLOSED, self.id, closed.as_dict(), closed.sketch)


class ReceiptLog:
    """Thread-safe; any number of processes may write to one database."""

    def __init__(self, database: Database, masters: MasterKeys) -> None:
        self._database, self._masters = database, masters
        self._queue: list[_Waiting] = []
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._signers: dict[str, Signer] = {}

    def begin(self, begun: Begun) -> Handle:
        """See `caw.serve.contracts.ReceiptLog`. ValueError for an id that is in use."""
        fields = dataclasses.asdict(begun)
        self.append(BEGUN, fields.pop("id"), fields)
        return Handle(begun.id, self)

    def check(self) -> None:
        """See `caw.serve.contracts.ReceiptLog`: write a little, and check that a receipt could be signed."""
        with self._database.writing() as connection:
            self._signer(connection)
            now = self._database.clock().isoformat()
            connection.execute(tables.facts.update().where(tables.facts.c.name == "checked").values(value=now))

    def resume(self) -> int:
        """See `caw.serve.contracts.ReceiptLog`. Verifies only the end of the log, which is fast."""
        with self._database.writing() as connection:
            now = self._signer(connection).public
        kinds = sa.select(TABLE.c.kind, sa.func.count()).group_by(TABLE.c.kind)
        with self._database.reading() as connection:
            if verify_end(connection) != now:
                raise ValueError(
                    "the receipt log must end with an entry signed by this registry's key, found another; check for "
                    "tampering"
                )
            counts = {row[0]: row[1] for row in connection.execute(kinds)}
        return int(counts.get(BEGUN, 0) - counts.get(CLOSED, 0))

    def append(self, kind: str, receipt: str, fields: dict[str, Any], sketch: bytes = b"") -> None:
        """Write an entry durably before returning."""
        canonical(fields)  # what JSON cannot hold is to fail alone, not with those it shares a commit with
        mine = _Waiting(kind, receipt, fields, sketch)
        with self._lock:
            self._queue.append(mine)
        with self._turn:
            if not mine.done:  # else whoever had the turn before wrote it too
                with self._lock:
                    together, self._queue = self._queue, []
                self._write(together)
        if mine.error is not None:
            raise mine.error

    def _write(self, together: Sequence[_Waiting]) -> None:
        try:
            self._commit(together)
        except RefusedError as error:
            if len(together) > 1:  # one of them was there already; the others are not to suffer
                for each in together:
                    self._write([each])
                return
            self._finish(together, self._why_refused(together[0], error))
        except BaseException as error:
            self._finish(together, error)
            if not isinstance(error, Exception):
                raise
        else:
            self._finish(together, None)

    def _why_refused(self, entry: _Waiting, error: RefusedError) -> Exception:
        same = sa.and_(TABLE.c.receipt == entry.receipt, TABLE.c.kind == entry.kind)
        try:
            with self._database.reading() as connection:
                there = connection.execute(sa.select(TABLE.c.sequence).where(same)).first() is not None
        except OSError as other:
            return other
        again = f"a receipt can be {entry.kind} only once, got {entry.receipt} again; use a new id for each text"
        return ValueError(again) if there else error

    def _finish(self, together: Sequence[_Waiting], error: BaseException | None) -> None:
        for each in together:
            each.error, each.done = error, True

    def _commit(self, together: Sequence[_Waiting]) -> None:
        with self._database.writing() as connection:
            signer, chain = self._signer(connection), self._database.fact(connection, "chain")
            sequence, previous = head(connection)
            rows = []
            for each in together:
                sequence += 1
                entry = signer.entry({"chain": chain, "sequence": sequence, "kind": each.kind, "previous": previous,
                                      "receipt": {"id": each.receipt, **each.fields}})  # fmt: skip
                rows.append(_row(sequence, each.kind, each.receipt, each.fields.get("digest"), entry, signer))
                previous = entry.digest
                if each.sketch:
                    add_sketch(connection, sequence, each.sketch)
            connection.execute(TABLE.insert(), rows)

    def rotate_signer(self) -> str:
        """Sign with a new key from now on, certified by the old one; return its public key, in hex."""
        with self._turn, self._database.writing() as connection:
            old = self._signer(connection)
            return self._announce(connection, Signer.new(), old).public

    def public_keys(self) -> list[str]:
        """Return all public keys that ever signed, in hex, the oldest first."""
        with self._database.writing() as connection:
            self._signer(connection)
            rows = connection.execute(sa.select(TABLE.c.content).where(TABLE.c.kind == KEY).order_by(TABLE.c.sequence))
            return [json.loads(row.content)["receipt"]["public"] for row in rows]

    def _signer(self, connection: sa.Connection) -> Signer:
        """Return the current signing key; create it if there is none."""
        keys = tables.signing_keys
        announced = sa.select(TABLE.c.receipt).where(TABLE.c.kind == KEY).order_by(TABLE.c.sequence.desc()).limit(1)
        id = connection.execute(announced).scalar()
        if id is None:
            first = Signer.new()
            return self._announce(connection, first, first)
        if id not in self._signers:
            sealed = connection.execute(sa.select(keys.c.secret).where(keys.c.id == id)).scalar()
            if sealed is None:
                raise ValueError(f"signing key {id} must be in the registry, found none; restore it from a backup")
            self._signers[id] = Signer.from_secret(self._masters.open(sealed, place(id)))
        return self._signers[id]

    def _announce(self, connection: sa.Connection, new: Signer, old: Signer) -> Signer:
        """Store a new key and write the entry that names it, signed by the old one."""
        sealed = self._masters.seal(new.secret, place(new.id))
        row = {"id": new.id, "secret": sealed, "created": self._database.clock()}
        connection.execute(tables.signing_keys.insert().values(row))
        sequence, previous = head(connection)
        chain, receipt = self._database.fact(connection, "chain"), {"id": new.id, "public": new.public}
        entry = old.entry({"chain": chain, "sequence": sequence + 1, "kind": KEY, "previous": previous,
                           "receipt": receipt})  # fmt: skip
        connection.execute(TABLE.insert().values(_row(sequence + 1, KEY, new.id, None, entry, old)))
        return new


def head(connection: sa.Connection) -> tuple[int, str]:
    """Return (number, digest) of the last entry; 0 and "" for an empty log."""
    last = sa.select(TABLE.c.sequence, TABLE.c.digest).order_by(TABLE.c.sequence.desc()).limit(1)
    found = connection.execute(last).first()
    return (found.sequence, found.digest) if found is not None else (0, "")


def reseal_signers(connection: sa.Connection, masters: MasterKeys) -> int:
    """Re-encrypt the signing keys under the first master key; return how many were under another."""
    keys = tables.signing_keys
    old = [row for row in connection.execute(sa.select(keys)).all() if not masters.is_current(row.secret)]
    for row in old:
        sealed = masters.seal(masters.open(row.secret, place(row.id)), place(row.id))
        connection.execute(keys.update().where(keys.c.id == row.id).values(secret=sealed))
    return len(old)


def place(id: str) -> str:
    """Return the associated data of a sealed signing key."""
    return f"signing key {id}"


def _row(sequence: int, kind: str, receipt: str, text: str | None, entry: Entry, signer: Signer) -> dict[str, Any]:
    return {"sequence": sequence, "kind": kind, "receipt": receipt, "text": text, "content": entry.content,
            "digest": entry.digest, "signing_key": signer.id, "signature": entry.signature}  # fmt: skip
