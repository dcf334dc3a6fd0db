"""The queue between the request threads and the decoding thread, with fair scheduling of tenants.

A busy tenant cannot lock out others: a tenant may use at most as much of the queue as it leaves free, and a free row
goes to the tenant with the fewest rows.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence

from caw.decoding.plan import Plan
from caw.decoding.request import Request
from caw.decoding.waiting import Waiting
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
        """Record that a job has ended."""
        with self._changed:
            self.under_way -= 1
            self._held[job.tenant] -= 1
            if not self._held[job.tenant]:
                del self._held[job.tenant]

    def close(self) -> None:
        """Accept no more jobs."""
        with self._changed:
            self.closed = True
            self._changed.notify()


class LiveWaiting(Waiting):
    """A queue whose decoder runs until the inbox is closed: with an empty batch it waits for a job.

    Args:
        settle: called before each step and before waiting. admit: called with each new job.
        gone: whether a request was abandoned, by its number. whose: its tenant, by its number.
        held: rows of each tenant.
    """

    def __init__(
        self,
        plan: Plan,
        inbox: Inbox,
        settle: Callable[[], None],
        admit: Callable[[Job], None],
        gone: Callable[[int], bool],
        whose: Callable[[int], str],
        held: Callable[[], Counter[str]],
    ) -> None:
        super().__init__(plan)
        self.inbox, self.settle, self.admit, self._gone = inbox, settle, admit, gone
        self.whose, self.held = whose, held
        self._ahead: set[int] = set()

    def add(self, request: Request, *, ahead: bool = False) -> int:
        number = super().add(request, ahead=ahead)
        if ahead:
            self._ahead.add(number)
        return number

    def take(self, most: int) -> list[tuple[int, Request]]:
        """Return retries first, then one request per row: the oldest of the tenant with the fewest rows."""
        held, taken = self.held(), list[tuple[int, Request]]()
        while self.requests and len(taken) < most:
            order = ((one[0] not in self._ahead, held[self.whose(one[0])], place) for place, one in
                     enumerate(self.requests))  # fmt: skip
            place = min(order)[-1]
            taken.append(self.requests[place])
            del self.requests[place]
            self._ahead.discard(taken[-1][0])
            held[self.whose(taken[-1][0])] += 1
        return taken

    def gone(self, number: int) -> bool:
        return self._gone(number)

    def more(self, *, idle: bool) -> bool:
        while True:
            self.settle()
            for job in self.inbox.take(wait=idle and not self.requests):
                self.admit(job)
            self.requests = deque(one for one in self.requests if not self._gone(one[0]))
            self._ahead.intersection_update(number for number, _ in self.requests)
            if not idle or self.requests:
                return True
            if self.inbox.closed:
                self.settle()
                return False
