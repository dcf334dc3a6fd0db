"""Queue of requests that have no row in the batch yet."""

from collections import deque

from caw.decoding.plan import Plan
from caw.decoding.prefill import shared_beginning
from caw.decoding.request import Request


class Waiting:
    """First in, first out, but for requests ahead. shared: tokens that all prompts since `begin` start with."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.requests: deque[tuple[int, Request]] = deque()
        self.shared, self.added = 0, 0
        self.beginning: list[int] = []

    def __len__(self) -> int:
        return len(self.requests)

    def add(self, request: Request, *, ahead: bool = False) -> int:
        """Add a request at the end or the front; return its number. ValueError if the decoder has no plan for it."""
        plan = self.plan
        plan.limits.check(request.row, plan.facts.ends)
        plan.marks.of(request.mark, request.row.key)
        length, most = len(request.ids) + request.budget, plan.capacity
        if len(request.begun) >= request.budget:
            raise ValueError(
                f"a text that has begun must have room to go on, got {len(request.begun)} tokens of at most "
                f"{request.budget}; ask for more"
            )
        if length > most or request.budget > plan.limits.max_new_tokens:
            raise ValueError(
                f"the texts of this decoder may have {most} tokens and {plan.limits.max_new_tokens} new ones, got a "
                f"request for {length} and {request.budget}; plan it with more"
            )
        begins_alike = list(request.ids[: self.shared]) == self.beginning
        if not begins_alike or len(request.known) <= self.shared + plan.reach:  # its last positions have to be read
            self.shared, self.beginning = 0, []
        (self.requests.appendleft if ahead else self.requests.append)((self.added, request))
        self.added += 1
        return self.added - 1

    def more(self, *, idle: bool) -> bool:
        """Tell whether decoding continues; idle: no text is in the batch. Called before each step; may block."""
        return not idle or bool(self.requests)

    def gone(self, number: int) -> bool:
        """Tell whether a request was abandoned, by its number."""
        return False

    def begin(self) -> None:
        """Find the beginning that all waiting prompts share."""
        if self.requests and self.plan.limit is None:
            prompts = [request.ids for _, request in self.requests]
            self.shared = shared_beginning(prompts, self.plan.reach)
            self.beginning = list(prompts[0][: self.shared])

    def take(self, most: int) -> list[tuple[int, Request]]:
        """Remove and return the next requests with their numbers, at most `most`."""
        return [self.requests.popleft() for _ in range(min(most, len(self.requests)))]
