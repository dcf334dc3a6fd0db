"""Export of the receipt log, and verification by anyone with the export and the public key; no database needed.

`verify` detects every change, gap and swap. It cannot detect truncation at the end: compare with an earlier export
(`after`), or with a digest recorded elsewhere.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import sqlalchemy as sa

from caw.registry import tables
from caw.registry.chain import BEGUN, CLOSED, KEY, Entry, canonical, digest_of, signed_by, signer_id
from caw.registry.database import Database

AT_ONCE = 1000  # rows that are read together
FIELDS = {"chain", "sequence", "kind", "previous", "receipt", "key", "digest", "signature"}


@dataclass(frozen=True)
class Verified:
    """A verified chain.

    entries: their number. begun, closed: texts that were started, and those whose end is known. open: ids of the
    others: texts in progress at the export, or lost in a crash. signers: public keys in hex, in signing order. chain:
    its name. last: digest of the last entry, "" for an empty log; record it to detect truncation.
    """

    entries: int
    begun: int
    closed: int
    open: tuple[str, ...]
    signers: tuple[str, ...]
    chain: str
    last: str


def export_lines(database: Database, after: int = 0) -> Iterator[str]:
    """Yield the entries after number `after` as JSON lines, in order."""
    table = tables.receipts
    while True:
        with database.reading() as connection:
            some = sa.select(table).where(table.c.sequence > after).order_by(table.c.sequence).limit(AT_ONCE)
            rows = connection.execute(some).all()
        for row in rows:
            yield canonical(Entry(row.content, row.digest, row.signature).as_dict())
        if not rows:
            return
        after = rows[-1].sequence


def count_entries(database: Database, after: int = 0) -> int:
    """Return the number of entries after number `after`."""
    table = tables.receipts
    with database.reading() as connection:
        counted = sa.select(sa.func.count()).select_from(table).where(table.c.sequence > after)
        return int(connection.execute(counted).scalar_one())


def verify(lines: Iterable[str], public_key: str | None = None, after: Iterable[str] = ()) -> Verified:
    """Verify an export and return its summary.

    Args:
        lines: JSON lines from the first entry on. public_key: published key of the first signer, in hex; None = trust
            the first entry's key, which proves only that one key signed everything.
        after: an earlier export that this one must extend.

    An empty log is an error if a public key is given; without one it has no entries.

    Raises ValueError, naming the line, at the first entry that does not verify.
    """
    chain = _Chain(public_key)
    earlier = iter(after)
    for number, line in enumerate(lines, 1):
        entry = _parsed(line, number)
        old = next(earlier, None)
        if old is not None and _parsed(old, number) != entry:
            _refuse(number, "the entry of the earlier export", "another", "the log was written anew: trust neither")
        chain.add(entry, number)
    if public_key is not None and not chain.signers:  # a service's log begins with its key, from the first moment on
        _refuse(1, "the public key that was given, which every log begins with", "an empty log", "it was cut off")
    if next(earlier, None) is not None:
        _refuse(chain.entries + 1, "as many entries as the earlier export", "fewer", "the end of the log was cut off")
    return chain.verified()


def verify_end(connection: sa.Connection, most: int = AT_ONCE) -> str:
    """Return the last entry's public key, in hex. ValueError at the first of the last `most` that does not verify."""
    table = tables.receipts
    rows = connection.execute(sa.select(table).order_by(table.c.sequence.desc()).limit(most)).all()[::-1]
    entries = [Entry(row.content, row.digest, row.signature).as_dict() for row in rows]
    chain, first = _Chain(None), rows[0].sequence
    if first > 1:
        keys = sa.select(table.c.content).where(table.c.kind == KEY, table.c.sequence < first)
        announced = connection.execute(keys.order_by(table.c.sequence.desc()).limit(1)).scalar_one()
        chain.signers.append(json.loads(announced)["receipt"]["public"])
        chain.entries, chain.last, chain.name = first - 1, entries[0]["previous"], entries[0]["chain"]
        chain.whole = False
    for entry in entries:
        chain.add(_parsed(canonical(entry), entry["sequence"]), entry["sequence"])
    return chain.signers[-1]


class _Chain:
    """State of the verification. whole: whether it started at the first entry."""

    def __init__(self, public_key: str | None) -> None:
        self.trusted = public_key.lower() if public_key is not None else None
        self.entries, self.last, self.name, self.whole = 0, "", "", True
        self.signers: list[str] = []
        self.begun: dict[str, bool] = {}  # receipts, and whether they were closed

    def add(self, entry: Mapping[str, Any], number: int) -> None:
        """Add one more entry. ValueError if it does not verify."""
        content = {name: value for name, value in entry.items() if name not in ("digest", "signature")}
        if digest_of(canonical(content)) != entry["digest"]:
            _refuse(number, "the digest of its entry", "another", "the entry was changed")
        if entry["sequence"] != self.entries + 1 or entry["previous"] != self.last:
            _refuse(number, f"entry {self.entries + 1} of the chain", "another", "one was dropped, moved or put in")
        if self.entries and entry["chain"] != self.name:
            _refuse(number, f"an entry of chain {self.name}", "one of another", "two logs were mixed")
        signer = self._signer(entry, number)
        if entry["key"] != signer_id(signer) or not signed_by(signer, entry["digest"], entry["signature"]):
            _refuse(number, f"the signature of key {signer_id(signer)}", "another", "the entry is not the service's")
        self._count(entry, number)
        self.entries, self.last, self.name = self.entries + 1, entry["digest"], entry["chain"]

    def _signer(self, entry: Mapping[str, Any], number: int) -> str:
        """Return the public key that must have signed this entry."""
        if self.signers:
            return self.signers[-1]
        first = entry["receipt"].get("public") if entry["kind"] == KEY else None
        if not isinstance(first, str) or len(first) != 64 or not set(first) <= set("0123456789abcdef"):
            _refuse(number, "a signing key first", str(entry["kind"]), "export from the first entry on")
        if self.trusted is not None and first != self.trusted:
            _refuse(number, "the public key that was given", "another", "the log is not that service's")
        return first

    def _count(self, entry: Mapping[str, Any], number: int) -> None:
        kind, receipt = entry["kind"], entry["receipt"]["id"]
        if kind == KEY:
            self.signers.append(entry["receipt"]["public"])
        elif kind == BEGUN:
            if receipt in self.begun:
                _refuse(number, "a receipt of its own", f"{receipt} again", "a text was counted twice")
            self.begun[receipt] = False
        elif kind == CLOSED:
            if self.begun.get(receipt, self.whole):
                _refuse(number, "the end of an open receipt", receipt, "it had not begun, or was closed already")
            self.begun[receipt] = True
        else:
            _refuse(number, "an entry of kind key, begun or closed", repr(kind), "verify it with a newer version")

    def verified(self) -> Verified:
        closed = sum(self.begun.values())
        still = tuple(receipt for receipt, ended in self.begun.items() if not ended)
        return Verified(self.entries, len(self.begun), closed, still, tuple(self.signers), self.name, self.last)


def _parsed(line: str, number: int) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    whole = isinstance(entry, dict) and set(entry) == FIELDS and isinstance(entry["receipt"], dict)
    if not whole or not isinstance(entry["receipt"].get("id"), str):
        _refuse(number, "an entry of `caw audit export`", "something else", "give the file as it was written")
    if not all(isinstance(entry[name], str) for name in FIELDS - {"sequence", "receipt"}):
        _refuse(number, "an entry of `caw audit export`", "fields of other kinds", "give the file as it was written")
    return dict(entry)


def _refuse(number: int, expected: str, found: str, meaning: str) -> NoReturn:
    raise ValueError(f"line {number} of the receipts: expected {expected}, found {found}; {meaning}")
