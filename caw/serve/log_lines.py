"""Rate-limited log lines about failures: one line for expected states, a traceback for unexpected errors.

A tenant without a key or a full disk is for the operator to fix, and one sentence says it all. Tracebacks are for
unexpected errors.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

EXPECTED = (OSError, ValueError, ImportError)  # raised in one sentence by registries, receipts and tests of texts
LINES, SECONDS = 10, 60.0  # lines about one kind of event, in so long; the rest are counted


class LogLines:
    """Writes events; thread-safe.

    Args:
        log: destination. clock: seconds from any start.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self.log, self.clock, self._lock = log, clock, threading.Lock()
        self._begun: dict[str, float] = {}
        self._written: Counter[str] = Counter()

    def failed(self, what: str, error: BaseException) -> None:
        """Log a failure by its caught error; what: the kind of event, one of few."""
        ours = type(error) in EXPECTED or isinstance(error, OSError)
        why = " ".join(str(error).split()) or type(error).__name__
        if not ours:  # with its traceback, always: nobody knows yet what it is
            self.log.error("%s", what, exc_info=error)
        elif (left_out := self._turn(what)) is not None:
            before = f" ({left_out} more in the last minute not shown)" if left_out else ""
            self.log.error("%s: %s%s", what, why, before)

    def _turn(self, what: str) -> int | None:
        """Return None if a kind of event has used up its lines, otherwise the number skipped since the last one."""
        with self._lock:
            now, left_out = self.clock(), 0
            if now >= self._begun.get(what, -SECONDS) + SECONDS:
                left_out = max(0, self._written[what] - LINES)
                self._begun[what], self._written[what] = now, 0
            self._written[what] += 1
            return left_out if self._written[what] <= LINES else None
