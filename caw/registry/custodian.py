"""A custodian of keys outside: a command that derives keys from a master key which this process never has.

It is called with one more argument, what the key is for and since when, and prints 32 bytes in base64: the HMAC-SHA256
of that argument under its master key is enough. A secret is sealed under the key of its kind and day; whoever holds
that key opens what was sealed on that day, and a custodian that refuses a kind to a host keeps those secrets from it.
"""

import base64
import contextlib
import math
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone

VARIABLE = "CAW_MASTER_KEY_COMMAND"
BYTES, MOST = 32, 4096  # of a key, and that are read
SECONDS, PAUSE = 10, 5  # within which a key must come, and for which a failure counts: below a database's wait
KINDS = ("marking", "signing", "sketches")  # of sealed secrets
LABEL = re.compile(rf"(?:{'|'.join(KINDS)})/[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}")
CALL = f"{VARIABLE} must name a command that prints {BYTES} bytes in base64"


def decoded(text: bytes) -> bytes | None:
    """Return the key that a text in base64, of either alphabet, stands for; None for anything else."""
    try:
        key = base64.b64decode(text, altchars=b"-_", validate=True)
    except ValueError:
        return None
    return key if len(key) == BYTES else None


@dataclass
class Custodian:
    """Asks for each key once, one at a time; keys stay in memory. command: with its arguments. day: today's, in UTC."""

    command: tuple[str, ...] = field(repr=False)
    day: Callable[[], str] = lambda: datetime.now(timezone.utc).date().isoformat()
    _keys: dict[str, bytes] = field(default_factory=dict, repr=False)
    _failed: dict[str, tuple[float, str]] = field(default_factory=dict, repr=False)
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def read(cls, line: str) -> "Custodian":
        """Return that of a command line, which no shell sees. ValueError for one that cannot be split."""
        with contextlib.suppress(ValueError):
            if command := tuple(shlex.split(line)):
                return cls(command)
        raise ValueError(f"{CALL}, got a line that is none; check its quotes")

    def key(self, label: str) -> bytes:
        """Return the key of this name. OSError, in one sentence without what the command printed, if none comes.

        Those who wait for a key that does not come get the same error, and no call of their own.
        """
        if (known := self._keys.get(label)) is not None:
            return known
        with self._turn:
            then, error = self._failed.get(label, (-math.inf, ""))
            if time.monotonic() < then + PAUSE:
                raise OSError(error)
            if label not in self._keys:
                try:
                    self._keys[label] = self._derived(f"caw/{label}")
                except OSError as failed:
                    self._failed[label] = time.monotonic(), str(failed)
                    raise
            return self._keys[label]

    def _derived(self, label: str) -> bytes:
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        try:
            asked = subprocess.Popen(
                [*self.command, label], 0, stdin=none, stdout=pipe, stderr=none, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise OSError(f"{CALL}, got one that cannot be run ({type(error).__name__}); check its path") from None
        assert asked.stdout is not None
        with asked.stdout as output:
            try:
                asked.wait(SECONDS)  # reading nothing yet: who prints without end stops at a full pipe
                os.set_blocking(output.fileno(), False)  # what it leaves running may hold its output open
                printed = output.read(MOST) or b""
            except subprocess.TimeoutExpired:
                raise OSError(f"{CALL}, got nothing for {label} within {SECONDS} s; check the custodian") from None
            finally:
                if asked.returncode is None:
                    os.killpg(asked.pid, signal.SIGKILL)
                    asked.wait()
        if asked.returncode:
            raise OSError(f"{CALL}, got status {asked.returncode} for {label}; call it by hand, or ask the custodian")
        if (key := decoded(printed.strip())) is None:
            raise OSError(f"{CALL}, got {len(printed)} other bytes for {label}; call it by hand")
        return key
