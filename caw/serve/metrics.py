"""Numbers for Prometheus. Nothing in them says who asked or what."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from caw.serve.contracts import Ending
from caw.serve.engine import Engine
from caw.serve.orders import Order

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/detect", "/")
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Counts what an engine and its orders do."""

    def __init__(self, engine: Engine) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("caw_requests", "Requests by path and status.", ["path", "status"], registry=registry)
        self.texts = Counter("caw_texts", "Texts by how they ended and whether they are marked.",
                             ["ending", "marked"], registry=registry)  # fmt: skip
        self.found = Counter(
            "caw_tested_texts", "Tested texts by whether they are found.", ["found"], registry=registry
        )
        self.tokens = Counter("caw_tokens", "Tokens read and made for clients.", ["kind"], registry=registry)
        self.seconds = Histogram("caw_request_seconds", "From taking an order to its end.", registry=registry,
                                 buckets=SECONDS)  # fmt: skip
        self.first = Histogram("caw_first_piece_seconds", "From taking an order to its first text.", registry=registry,
                               buckets=SECONDS)  # fmt: skip
        active = Gauge("caw_active_texts", "Rows of the batch that have a text.", registry=registry)
        active.set_function(lambda: engine.active)
        waiting = Gauge("caw_waiting_texts", "Texts that wait for a row.", registry=registry)
        waiting.set_function(lambda: engine.waiting)
        decoded = Gauge("caw_decoded_tokens", "New tokens of all texts, those of repeated attempts included.",
                        registry=registry)  # fmt: skip
        decoded.set_function(lambda: engine.tokens)
        self._begun: dict[Order, float] = {}
        self._waits: set[Order] = set()

    def answered(self, path: str, status: int) -> None:
        """A request got its status."""
        self.requests.labels(path if path in PATHS else "other", str(status)).inc()

    def taken(self, order: Order) -> None:
        """An order is being made."""
        self._begun[order] = time.monotonic()
        self._waits.add(order)
        self.tokens.labels("prompt").inc(order.prompt_tokens)

    def came(self, order: Order) -> None:
        """A piece of an order came."""
        if order in self._waits:
            self._waits.discard(order)
            self.first.observe(time.monotonic() - self._begun[order])

    def finished(self, order: Order, ending: Ending) -> None:
        """An order ended."""
        self._waits.discard(order)
        self.seconds.observe(time.monotonic() - self._begun.pop(order))
        self.tokens.labels("completion").inc(order.completion_tokens)
        self.texts.labels(ending, str(order.marking.marked).lower()).inc(len(order.texts))
        for text in order.texts:
            if text.done is not None and text.done.receipt is not None:
                self.found.labels(str(text.done.receipt.found).lower()).inc()

    def shown(self) -> bytes:
        """What Prometheus reads."""
        return generate_latest(self.registry)
