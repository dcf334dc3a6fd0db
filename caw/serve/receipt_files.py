"""Receipts without a registry: lines of a JSONL file, or none at all.

    {"event": "begun", "id": ..., ...}      before the first byte of a text leaves
    {"event": "closed", "id": ..., ...}     before its client learns that it is complete

A receipt that was begun and never closed is that of a text of which a part may have left when the server died.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from pathlib import Path
from typing import Any

from caw.serve.contracts import Begun, Closed

BEGUN, CLOSED = b'{"event":"begun"', b'{"event":"closed"'


class NoReceipts:
    """A `ReceiptLog` that keeps nothing."""

    def begin(self, begun: Begun) -> NoReceipts:
        return self

    def close(self, closed: Closed) -> None:
        return

    def check(self) -> None:
        return

    def resume(self) -> int:
        return 0


class JsonlReceipts:
    """A `ReceiptLog` that appends lines to a file; several threads and servers may share it.

    Raises OSError where the file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self._lock = threading.Lock()
        # appended in one write each, so that lines of two servers do not mix
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.path = Path(path)

    def begin(self, begun: Begun) -> _Open:
        self.write({"event": "begun", **dataclasses.asdict(begun)})
        return _Open(self, begun.id)

    def resume(self) -> int:
        """See `ReceiptLog`; a line that was cut off in the middle is ended."""
        still, last = 0, b"\n"
        with open(self.path, "rb") as file:
            for last in file:
                still += last.startswith(BEGUN) - last.startswith(CLOSED)
        if not last.endswith(b"\n"):
            os.write(self._file, b"\n")
        return max(0, still)

    def check(self) -> None:
        with self._lock:
            room = os.fstatvfs(self._file)
        if not room.f_bavail:
            raise OSError(f"cannot write receipts to {self.path.name}: the disk is full; make room")

    def write(self, line: dict[str, Any]) -> None:
        """Append a line and wait until it is durable."""
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            written = os.write(self._file, data)
            if written != len(data):
                os.write(self._file, b"\n")  # what follows begins a line of its own
                raise OSError(f"cannot write receipts to {self.path.name}: the disk is full; make room")
            os.fdatasync(self._file)


@dataclasses.dataclass(frozen=True)
class _Open:
    """A receipt that has begun."""

    log: JsonlReceipts
    id: str

    def close(self, closed: Closed) -> None:
        self.log.write({"event": "closed", "id": self.id, **dataclasses.asdict(closed)})
