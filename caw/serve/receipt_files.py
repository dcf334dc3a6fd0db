"""Receipts without a registry: lines of a JSONL file, or none at all.

    {"event": "begun", "id": ..., ...}      before the first byte of a text is sent
    {"event": "closed", "id": ..., ...}     before its client learns that it is complete

A receipt that is begun but not closed belongs to a text that may have been sent in part when the server died.
"""

import dataclasses
import errno
import json
from pathlib import Path
from typing import Any

from caw.io.lines import LineFile
from caw.serve.contracts import Begun, Closed

BEGUN, CLOSED = b'{"event":"begun"', b'{"event":"closed"'


class NoReceipts:
    """A `ReceiptLog` that stores nothing."""

    def begin(self, begun: Begun) -> "NoReceipts":
        return self

    def close(self, closed: Closed) -> None:
        return

    def check(self) -> None:
        return

    def resume(self) -> int:
        return 0


class JsonlReceipts:
    """A `ReceiptLog` that appends lines to a file, which several threads and servers may share.

    Raises OSError if the file cannot be written, ValueError for a file that ends in half a line of another kind.
    """

    def __init__(self, path: str | Path) -> None:
        self._lines = LineFile(
            path, line_start=b'{"event":', made_by="caw serve --receipts", shared=True, durable=True, mode=0o600
        )
        self._lines.mend()

    def begin(self, begun: Begun) -> "_Open":
        self.write({"event": "begun", **dataclasses.asdict(begun)})
        return _Open(self, begun.id)

    def resume(self) -> int:
        """See `ReceiptLog`; a truncated line has been removed."""
        still = 0
        with open(self._lines.target, "rb") as file:
            for line in file:
                still += line.startswith(BEGUN) - line.startswith(CLOSED)
        return max(0, still)

    def check(self) -> None:
        if not self._lines.free():
            raise OSError(f"cannot write receipts to {self._lines.path.name}: the disk is full; free some space")

    def write(self, line: dict[str, Any]) -> None:
        """Append a line durably; if that fails, the file is unchanged."""
        try:
            self._lines.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            why = (
                "the disk is full; free some space"
                if full
                else f"{(error.strerror or str(error)).lower()}; check the disk"
            )
            raise OSError(f"cannot write receipts to {self._lines.path.name}: {why}") from error


@dataclasses.dataclass(frozen=True)
class _Open:
    """An open receipt."""

    log: JsonlReceipts
    id: str

    def close(self, closed: Closed) -> None:
        self.log.write({"event": "closed", "id": self.id, **closed.as_dict()})
