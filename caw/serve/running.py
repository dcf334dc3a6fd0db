"""A server as a process: sockets, signals, and an end that lets requests finish."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from caw.serve.app import make_app
from caw.serve.service import Service
from caw.serve.settings import ServerSettings


def server_for(service: Service, tell: Callable[[str], None] = lambda where: None) -> QuietServer:
    """A uvicorn server of a service; `.run()` serves until SIGINT or SIGTERM, then finishes what is under way.

    tell: called with its URL once it listens.
    """
    settings = service.settings
    config = uvicorn.Config(
        make_app(service), host=settings.host, port=settings.port, http=_protocol(settings), ws="none", loop="asyncio",
        log_level="warning", access_log=False, server_header=False, date_header=False, proxy_headers=False,
        timeout_keep_alive=int(settings.read_timeout) or 1, timeout_graceful_shutdown=int(settings.grace),
        limit_concurrency=None, backlog=1024,
    )  # fmt: skip
    return QuietServer(config, tell)


class QuietServer(uvicorn.Server):
    """Says where it listens, and ends normally when told to stop, without raising the signal again."""

    def __init__(self, config: uvicorn.Config, tell: Callable[[str], None]) -> None:
        super().__init__(config)
        self.tell = tell

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.tell(self.url)

    @property
    def url(self) -> str:
        """Where clients reach it; known once it has started."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM)
        try:
            before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        except ValueError:  # not in the main thread: whoever runs it there ends it by `should_exit`
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _protocol(settings: ServerSettings) -> type[asyncio.Protocol]:
    """HTTP/1.1 whose clients have `read_timeout` seconds for the head of each request."""

    class Patient(H11Protocol):
        head: asyncio.TimerHandle | None = None

        @property
        def between(self) -> bool:
            """Whether no request is under way."""
            return self.cycle is None or self.cycle.response_complete

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.head = self.loop.call_later(settings.read_timeout, self.late)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self.between:
                self.stop()
            elif self.head is None:  # a part of the next request's head
                self.head = self.loop.call_later(settings.read_timeout, self.late)

        def connection_lost(self, exc: Exception | None) -> None:
            self.stop()
            super().connection_lost(exc)

        def stop(self) -> None:
            if self.head is not None:
                self.head.cancel()
                self.head = None

        def late(self) -> None:
            self.head = None
            if self.between and not self.transport.is_closing():
                self.transport.close()

    return Patient
