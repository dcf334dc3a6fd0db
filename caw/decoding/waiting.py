"""Requests that have no place in the batch yet."""

from __future__ import annotations

from collections import deque

from caw.decoding.plan import Plan
from caw.decoding.request import Request
from caw.decoding.row_marks import RowMarks
from caw.decoding.sharing import shared_beginning


class Waiting:
    """First come, first served, but for those who go ahead; requests may join at any time.

    marks: the watermarks of all texts. shared: tokens that all prompts begin with, as far as they were there when
    `begin` was called; 0 from the first one on that begins otherwise.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.marks = plan, RowMarks(plan.watermark)
        self.requests: deque[tuple[int, Request]] = deque()
        self.shared, self.added = 0, 0
        self.beginning: list[int] = []

    def __len__(self) -> int:
        return len(self.requests)

    def add(self, request: Request, *, ahead: bool = False) -> int:
        """Let a request wait, behind the others or ahead of them; its number.

        Raises ValueError for one that the decoder was not planned for.
        """
        plan = self.plan
        plan.limits.check(request.row, plan.facts.ends)
        self.marks.under(request.row.key)
        length, most = len(request.ids) + request.budget, plan.capacity
        if length > most or request.budget > plan.limits.max_new_tokens:
            raise ValueError(
                f"the texts of this decoder may have {most} tokens and {plan.limits.max_new_tokens} new ones, got a "
                f"request for {length} and {request.budget}; plan it with more"
            )
        begins_alike = list(request.ids[: self.shared]) == self.beginning
        if not begins_alike or len(request.ids) <= self.shared + plan.reach:  # its last positions have to be read
            self.shared, self.beginning = 0, []
        (self.requests.appendleft if ahead else self.requests.append)((self.added, request))
        self.added += 1
        return self.added - 1

    def more(self, *, idle: bool) -> bool:
        """Whether decoding goes on; idle: no text is in the batch. Called before each step; it may wait for more."""
        return not idle or bool(self.requests)

    def begin(self) -> None:
        """Find out what the prompts that wait begin with."""
        if self.requests and self.plan.limit is None:
            prompts = [request.ids for _, request in self.requests]
            self.shared = shared_beginning(prompts, self.plan.reach)
            self.beginning = list(prompts[0][: self.shared])

    def take(self, most: int) -> list[tuple[int, Request]]:
        """The next requests with their numbers, at most `most`."""
        return [self.requests.popleft() for _ in range(min(most, len(self.requests)))]
