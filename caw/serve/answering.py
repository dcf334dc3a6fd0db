"""Delivery of an order to its client: as one JSON object, or as server-sent events."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from caw.manifest import KIND
from caw.serve.contracts import Ending
from caw.serve.errors import ApiError, encoded
from caw.serve.metrics import Metrics
from caw.serve.orders import Order, Piece
from caw.serve.requests import StreamOptions
from caw.serve.settings import ServerSettings
from caw.serve.shapes import Shape, usage

LOG = logging.getLogger("caw.serve")
MANIFESTS = "/v1/manifests"
LINK = f'<{MANIFESTS}/{{}}>; rel="c2pa-manifest"; type="{KIND}"'
DONE = b"data: [DONE]\n\n"
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
EVENTS = "text/event-stream; charset=utf-8"
UNBUFFERED = {"x-accel-buffering": "no"}  # nginx would hold a stream back until it ends


class GoneError(Exception):
    """The client disconnected."""


class Answer(Response):
    """Creates an order and sends it.

    If the client disconnects, or is cut off because it does not read, its texts stop at their next token. An error in
    the middle of a stream is its last event, without [DONE], and the connection is closed.
    """

    def __init__(
        self, order: Order, shape: Shape, settings: ServerSettings, metrics: Metrics, usage: StreamOptions
    ) -> None:
        super().__init__()
        self.path = ""
        self.order, self.shape, self.settings, self.metrics, self.usage = order, shape, settings, metrics, usage
        self.begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.path = scope["path"]
        watch = asyncio.ensure_future(_left(receive))
        work = asyncio.ensure_future(self._stream(send) if self.order.stream else self._whole(send))
        ending: Ending = "failed"
        try:
            await asyncio.wait({watch, work}, timeout=self.settings.timeout, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                ending = await self._outcome(work, send)
            elif watch.done():
                ending = "cancelled"
            else:
                await _stopped(work)
                late = f"the request exceeded the timeout of {self.settings.timeout:g} s; ask for a shorter text"
                await self._fail(ApiError(504, late, code="timeout"), send)
        finally:
            await _stopped(watch, work)
            await asyncio.shield(asyncio.ensure_future(self.order.end(ending)))
            self.metrics.finished(self.order, ending)

    async def _outcome(self, work: asyncio.Future[None], send: Send) -> Ending:
        """Return the result of the work; report a failure to the client."""
        try:
            work.result()
            return "complete"
        except GoneError:
            return "cancelled"
        except ApiError as error:
            await self._fail(error, send)
        except Exception:
            LOG.exception("a response failed")
            await self._fail(ApiError(500, "the server failed; try again later"), send)
        return "failed"

    async def _fail(self, error: ApiError, send: Send) -> None:
        try:
            if self.begun:
                await self._send(send, _body(_event(error.body)))
            else:
                await self._begin(send, error.status, "application/json")
                await self._send(send, _body(encoded(error.body), last=True))
        except GoneError:
            LOG.debug("an error could not be delivered")

    async def _whole(self, send: Send) -> None:
        pieces = [piece async for piece in self._pieces()]
        body = encoded(self.shape.answer(self.order, pieces))
        await self._begin(send, 200, "application/json", len(body))
        await self._send(send, _body(body, last=True))

    async def _stream(self, send: Send) -> None:
        async for piece in self._pieces():
            events = [] if self.begun else list(self.shape.opening(self.order))
            if not self.begun:
                await self._begin(send, 200, EVENTS)
            events.append(self.shape.chunk(self.order, piece))
            counts = {"usage": usage(self.order)} if self.usage.continuous_usage_stats else {}
            await self._send(send, _body(b"".join(_event(one | counts) for one in events)))
        if self.usage.include_usage:
            await self._send(send, _body(_event(self.shape.usage_chunk(self.order))))
        await self._send(send, _body(DONE, last=True))

    async def _pieces(self) -> AsyncIterator[Piece]:
        async for piece in self.order.pieces():
            self.metrics.came(self.order)
            yield piece

    async def _begin(self, send: Send, status: int, kind: str, length: int | None = None) -> None:
        self.begun = True
        self.metrics.answered(self.path, status)
        more = UNBUFFERED if kind == EVENTS else {} if length is None else {"content-length": str(length)}
        headers = {**HEADERS, "content-type": kind, **more}
        calls = self.order.calls
        if self.settings.c2pa_key and status == 200 and not (calls is not None and calls.forced):
            headers["link"] = ", ".join(LINK.format(text.begun.id) for text in self.order.texts)
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send(send, {"type": "http.response.start", "status": status, "headers": raw})

    async def _send(self, send: Send, message: dict[str, Any]) -> None:
        try:
            await send(message)
        except OSError as error:
            raise GoneError from error


async def _left(receive: Callable[[], Awaitable[Any]]) -> None:
    """Return once the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        continue


async def _stopped(*tasks: asyncio.Future[None]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + encoded(value) + b"\n\n"


def _body(body: bytes, *, last: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": not last}
