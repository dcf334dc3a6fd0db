"""How texts get from the threads that ask for them to the one that decodes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from caw.decoding.plan import Plan
from caw.decoding.waiting import Waiting
from caw.serve.job import Job


class BusyError(Exception):
    """As many texts are under way as may be."""


class ClosedError(Exception):
    """Nothing is decoded any more."""


class Inbox:
    """Jobs that have come since the decoder last looked; safe to use from any thread.

    Args:
        most: jobs that may be under way, those in the batch included.
    """

    def __init__(self, most: int) -> None:
        self.most, self.under_way, self.closed = most, 0, False
        self._come: deque[Job] = deque()
        self._changed = threading.Condition()

    def put(self, jobs: Sequence[Job]) -> None:
        """Hand over all of these or none. Raises BusyError or ClosedError."""
        with self._changed:
            self.check(len(jobs))
            self._come.extend(jobs)
            self.under_way += len(jobs)
            self._changed.notify()

    def check(self, count: int) -> None:
        """Raise where so many more jobs would be refused now."""
        if self.closed:
            raise ClosedError
        if self.under_way + count > self.most:
            raise BusyError

    def take(self, *, wait: bool) -> list[Job]:
        """What has come; wait: for something, or for the end."""
        with self._changed:
            while wait and not self._come and not self.closed:
                self._changed.wait()
            come = list(self._come)
            self._come.clear()
            return come

    def ended(self, count: int = 1) -> None:
        """So many jobs are no longer under way."""
        with self._changed:
            self.under_way -= count

    def close(self) -> None:
        """Take no more."""
        with self._changed:
            self.closed = True
            self._changed.notify()


class LiveWaiting(Waiting):
    """A queue whose decoder goes on until the inbox is closed: where no text is in the batch, it waits for one.

    Args:
        settle: called before each step and before waiting. admit: called with each job that has come.
        gone: whether nobody waits for a request any more, by its number.
    """

    def __init__(
        self,
        plan: Plan,
        inbox: Inbox,
        settle: Callable[[], None],
        admit: Callable[[Job], None],
        gone: Callable[[int], bool],
    ) -> None:
        super().__init__(plan)
        self.inbox, self.settle, self.admit, self.gone = inbox, settle, admit, gone

    def more(self, *, idle: bool) -> bool:
        while True:
            self.settle()
            for job in self.inbox.take(wait=idle and not self.requests):
                self.admit(job)
            self.requests = deque(one for one in self.requests if not self.gone(one[0]))
            if not idle or self.requests:
                return True
            if self.inbox.closed:
                self.settle()
                return False
