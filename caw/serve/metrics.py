"""Prometheus metrics. They reveal nothing about clients or texts."""

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from caw.serve.contracts import Ending
from caw.serve.engine import Engine
from caw.serve.orders import Order

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/detect", "/")
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Metrics of an engine and its orders; None = of a server that only tests texts."""

    def __init__(self, engine: Engine | None) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("caw_requests", "Requests by path and status.", ["path", "status"], registry=registry)
        self.texts = Counter("caw_texts", "Texts by ending and mark.", ["ending", "marked"], registry=registry)
        self.detected = Counter("caw_tested_texts", "Tested texts by result.", ["detected"], registry=registry)
        self.tokens = Counter("caw_tokens", "Prompt and generated tokens of clients.", ["kind"], registry=registry)
        how: dict[str, Any] = {"registry": registry, "buckets": SECONDS}
        since = "Seconds from accepting a request to its"
        self.seconds = Histogram("caw_request_seconds", f"{since} end.", **how)
        self.first = Histogram("caw_first_piece_seconds", f"{since} first text.", **how)
        gauges = () if engine is None else (
            ("caw_active_texts", "Rows of the batch with a text.", lambda: engine.active),
            ("caw_reading_texts", "Rows whose prompt is being read between steps.", lambda: engine.reading),
            ("caw_waiting_texts", "Texts waiting for a row.", lambda: engine.waiting),
            ("caw_decoded_tokens", "New tokens of all texts, including retries.", lambda: engine.tokens),
        )  # fmt: skip
        for name, counted, count in gauges:
            Gauge(name, counted, registry=registry).set_function(count)
        self._begun: dict[Order, float] = {}
        self._waits: set[Order] = set()

    def answered(self, path: str, status: int) -> None:
        self.requests.labels(path if path in PATHS else "other", str(status)).inc()

    def taken(self, order: Order) -> None:
        """An order is being made."""
        self._begun[order] = time.monotonic()
        self._waits.add(order)
        self.tokens.labels("prompt").inc(order.prompt_tokens)

    def came(self, order: Order) -> None:
        """Count a piece of an order."""
        if order in self._waits:
            self._waits.discard(order)
            self.first.observe(time.monotonic() - self._begun[order])

    def finished(self, order: Order, ending: Ending) -> None:
        self._waits.discard(order)
        self.seconds.observe(time.monotonic() - self._begun.pop(order))
        self.tokens.labels("completion").inc(order.completion_tokens)
        self.texts.labels(ending, str(order.marking.marked).lower()).inc(len(order.texts))
        for text in order.texts:
            if text.done is not None and text.done.receipt is not None:
                self.detected.labels(str(text.done.receipt.detected).lower()).inc()

    def shown(self) -> bytes:
        return generate_latest(self.registry)
