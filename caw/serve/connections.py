"""HTTP connections: read and write timeouts, and a connection limit."""

import asyncio
import logging
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from caw.serve.settings import ServerSettings

LOG = logging.getLogger("caw.serve")
LEAST_RATE = 1024  # bytes a second
AT_ONCE = 1 << 14  # bytes that are looked at before other connections have their turn
SMALL = 64  # bytes: smaller chunks are counted, as each is 12 us of work, and a megabyte of single bytes 12 s
# of a body's small chunks: some clients send one for each token of their JSON, so that a whole body has many
MOST_SMALL, BYTES_EACH = 1 << 15, 32  # at least so many, and more where bodies may be longer than so many times that


def protocol_for(settings: ServerSettings) -> type[asyncio.Protocol]:
    """Return the protocol class of a server's connections."""
    return type("TimeoutProtocol", (TimeoutProtocol,), {"settings": settings})


class TimeoutProtocol(H11Protocol):
    """HTTP/1.1 with read and write timeouts and a connection limit.

    A request's head must arrive within `read_timeout` seconds. A client that reads less than LEAST_RATE for
    `write_timeout` seconds is disconnected, as is one that sends a body in too many small chunks. Above
    `max_connections`, the connection that has waited longest for a request is closed.
    """

    settings: ClassVar[ServerSettings]
    head: asyncio.TimerHandle | None = None
    stuck: asyncio.TimerHandle | None = None
    since = 0.0  # when its last answer was complete, or it came
    small = 0  # chunks of this request's body

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        read = self.conn.next_event

        def counting() -> Any:
            event = read()
            # only parts of a body in chunks have such an end; a part is a whole chunk, or what else came of one
            self.small += isinstance(event, h11.Data) and event.chunk_end and len(event.data) < SMALL
            return event

        self.conn.next_event = counting  # type: ignore[method-assign]

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: uvicorn would ask for websockets where Java's client offers HTTP/2 and is served without."""

    @property
    def between(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def lingers(self) -> bool:
        """Whether no complete request is being answered, so that closing it loses nothing."""
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
        super().data_received(data)
        most = max(MOST_SMALL, self.settings.max_body // BYTES_EACH)
        if self.small > most:
            LOG.warning("a connection was cut: a body came in more than %d chunks of less than %d bytes", most, SMALL)
            self.transport.abort()
            return
        if not self.between:
            self.stop()
        elif self.head is None:  # a part of the next request's head
            self.head = self.loop.call_later(self.settings.read_timeout, self.late)

    def on_response_complete(self) -> None:
        self.since, self.small = self.loop.time(), 0
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop()
        self.flows()
        del self.conn.next_event  # it held this
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
        """Check later how much the client has read."""
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
