"""Checks before every request: body size, read timeout, and errors in one shape."""

import asyncio
import re
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caw.serve.errors import BAD, FORBIDDEN, TOO_LONG, ApiError, encoded

HELD, SMALL = 1 << 26, 1 << 16  # bytes of bodies on their way beyond which only small ones are taken
DRAINED = 4  # times the limit, up to which a body is read to its end: who is still sending hears of no refusal
PORT = re.compile(r":[0-9]*$")


class BodyLimits:
    """Reads bodies before the application sees them: at most `most` bytes, within `seconds`.

    hosts: names under which the server may be called, and only by its own pages; None = any. Otherwise a foreign page,
    by rebinding its name to this machine or by sending forms, could make its visitors' browsers call the server.
    """

    def __init__(self, app: ASGIApp, most: int, seconds: float, hosts: Collection[str] | None = None) -> None:
        self.app, self.most, self.seconds, self.hosts = app, most, seconds, hosts
        self.held = 0  # bytes of bodies that have not come whole

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self.hosts is not None and (foreign := self._foreign(dict(scope["headers"]))):
            await _refuse(send, ApiError(FORBIDDEN, foreign))
            return
        if {b"content-length", b"transfer-encoding"} <= set(dict(scope["headers"])):
            # a proxy in front may take the other one, and what is a body to it be a request here
            await _refuse(send, ApiError(BAD, "a body must have one length, got two; leave content-length out"))
            return
        try:
            body = await asyncio.wait_for(self._read(scope, receive), self.seconds)
        except asyncio.TimeoutError:
            await _refuse(
                send, ApiError(408, f"the body exceeded the read timeout of {self.seconds:g} s; send it faster")
            )
            return
        except ApiError as error:
            await _refuse(send, error)
            return
        if body is None:  # the client left
            return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return whole.pop() if whole else await receive()

        await self.app(scope, again, send)

    def _foreign(self, headers: dict[bytes, bytes]) -> str:
        """Return why a request comes from a foreign page, "" if it does not."""
        host, origin = (headers.get(name, b"").decode("latin-1").lower() for name in (b"host", b"origin"))
        if PORT.sub("", host) not in (self.hosts or ()):
            return "this server does not accept this host name; use 127.0.0.1"
        if origin and origin.partition("://")[2] != host:
            return "this server does not accept requests from other sites' pages; call it from a program"
        return ""

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body; None if the client disconnected before its end."""
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        too_long = ApiError(TOO_LONG, f"a body may have at most {self.most} bytes; send less")
        if not announced.isdigit() or int(announced[:20]) > DRAINED * self.most:
            raise too_long
        parts: list[bytes] = []
        size = waiting = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                part = message.get("body", b"")
                size += len(part)
                whole = not message.get("more_body", False)
                if size > self.most:
                    parts.clear()
                    if whole or size > DRAINED * self.most:
                        raise too_long
                    continue
                parts.append(part)
                if whole:
                    return b"".join(parts)
                self.held, waiting = self.held + len(part), waiting + len(part)
                if self.held > HELD and size > SMALL:
                    raise ApiError(503, "too many large requests at once; try again later", code="queue_full")
        finally:
            self.held -= waiting


async def _refuse(send: Send, error: ApiError) -> None:
    """Respond and close: the rest of the body is not read."""
    body = encoded(error.body)
    headers = [
        (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close"),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
