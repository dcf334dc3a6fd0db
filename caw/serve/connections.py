"""Connections, and clients that are slow, take nothing, or are too many."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from caw.serve.settings import ServerSettings

LEAST_RATE = 1024  # bytes a second
AT_ONCE = 1 << 14  # bytes that are looked at before other connections have their turn
MOST_LINES = 1 << 14  # of a body in chunks, each of which has two: a byte a chunk makes 12 s of work of a megabyte


def protocol_for(settings: ServerSettings) -> type[asyncio.Protocol]:
    """The protocol of a server's connections."""
    return type("Patient", (Patient,), {"settings": settings})


class Patient(H11Protocol):
    """HTTP/1.1 whose clients may not keep a connection for nothing.

    They have `read_timeout` seconds for the head of each request. Who takes less than LEAST_RATE of what is sent to
    them, for `write_timeout` seconds, is cut off; so is who sends a body in too many chunks. Of more than
    `max_connections`, those go whose requests did not come.
    """

    settings: ClassVar[ServerSettings]
    head: asyncio.TimerHandle | None = None
    stuck: asyncio.TimerHandle | None = None
    since = 0.0  # when its last answer was complete, or it came
    lines = 0  # of the body that comes in chunks

    @property
    def between(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def lingers(self) -> bool:
        """Whether it has no whole request that is being answered, so that nothing is lost with it."""
        idle = self.between and not self.transport.get_write_buffer_size()
        return not self.transport.is_closing() and (idle or (not self.between and self.cycle.more_body))

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.since = self.loop.time()
        # all that the kernel does not take at once is waited for, so that it is known how long that takes
        transport.set_write_buffer_limits(high=0)
        transport.max_size = AT_ONCE
        self.head = self.loop.call_later(self.settings.read_timeout, self.late)
        if len(self.connections) > self.settings.max_connections:
            everyone: set[Any] = self.connections
            lingering = [one for one in everyone if one.lingers]
            min(lingering, key=lambda one: one.since).transport.abort()  # it is this one if there is no other

    def data_received(self, data: bytes) -> None:
        if not self.between and self.cycle.more_body and b"transfer-encoding" in dict(self.cycle.scope["headers"]):
            self.lines += data.count(b"\n")
            if self.lines > MOST_LINES:
                self.transport.abort()
                return
        super().data_received(data)
        if not self.between:
            self.stop()
        elif self.head is None:  # a part of the next request's head
            self.head = self.loop.call_later(self.settings.read_timeout, self.late)

    def on_response_complete(self) -> None:
        self.since, self.lines = self.loop.time(), 0
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop()
        self.flows()
        super().connection_lost(exc)

    def stop(self) -> None:
        if self.head is not None:
            self.head.cancel()
            self.head = None

    def late(self) -> None:
        self.head = None
        if self.between and not self.transport.is_closing():
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.watch()

    def resume_writing(self) -> None:
        self.flows()
        super().resume_writing()

    def watch(self) -> None:
        """Look again after a while at how much the client has taken."""
        waits = self.transport.get_write_buffer_size()
        self.stuck = self.loop.call_later(self.settings.write_timeout, self.check, waits)

    def flows(self) -> None:
        if self.stuck is not None:
            self.stuck.cancel()
            self.stuck = None

    def check(self, waited: int) -> None:
        if waited - self.transport.get_write_buffer_size() < LEAST_RATE * self.settings.write_timeout:
            self.transport.abort()  # closing would wait for the client to take the rest
        else:
            self.watch()
