"""The queue between the request threads and the decoding thread, with fair scheduling of tenants.

A busy tenant cannot lock out others: a tenant may use at most as much of the queue as it leaves free, and a free row
goes to the tenant with the fewest rows (`engine.LiveWaiting`).
"""

import threading
from collections import Counter, deque
from collections.abc import Sequence

from caw.serve.job import Job


class BusyError(Exception):
    """The maximum number of texts is in progress."""


class GreedyError(BusyError):
    """One tenant has its maximum share of texts in progress."""


class ClosedError(Exception):
    """Decoding has stopped."""


class Inbox:
    """Jobs that arrived since the decoder last looked; thread-safe.

    Args:
        most: maximum jobs in progress, including the batch. rows: of the batch.
        shared: whether tenants share it, so that none may use all of it.
    """

    def __init__(self, most: int, rows: int = 1, *, shared: bool = False) -> None:
        self.most, self.rows, self.shared, self.under_way, self.closed = most, rows, shared, 0, False
        self._held: Counter[str] = Counter()
        self._come: deque[Job] = deque()
        self._changed = threading.Condition()

    def put(self, jobs: Sequence[Job]) -> None:
        """Add all of these jobs of one tenant, or none. Raises BusyError, GreedyError or ClosedError."""
        tenant = jobs[0].tenant if jobs else ""
        with self._changed:
            self.check(len(jobs), tenant)
            self._come.extend(jobs)
            self.under_way += len(jobs)
            self._held[tenant] += len(jobs)
            self._changed.notify()

    def check(self, count: int, tenant: str = "") -> None:
        """Raise if this many more jobs of a tenant would be rejected now."""
        if self.closed:
            raise ClosedError
        free = self.most - self.under_way - count
        if free < 0:
            raise BusyError
        if self.shared and self._held[tenant] + count > self.rows + free:
            raise GreedyError

    def take(self, *, wait: bool) -> list[Job]:
        """Return the new jobs; wait: until there is one, or the inbox closes."""
        with self._changed:
            while wait and not self._come and not self.closed:
                self._changed.wait()
            come = list(self._come)
            self._come.clear()
            return come

    def ended(self, job: Job) -> None:
        with self._changed:
            self.under_way -= 1
            self._held[job.tenant] -= 1
            if not self._held[job.tenant]:
                del self._held[job.tenant]

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify()
