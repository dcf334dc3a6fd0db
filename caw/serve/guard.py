"""What stands before every request: the size of its body, how long it may take to come, and errors in one shape."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caw.serve.errors import BAD, FORBIDDEN, TOO_LONG, ApiError, encoded

HELD, SMALL = 1 << 26, 1 << 16  # bytes of bodies on their way beyond which only small ones are taken
DRAINED = 4  # times the limit, up to which a body is read to its end: who is still sending hears of no refusal
PORT = re.compile(r":[0-9]*$")


class Guard:
    """Reads bodies whole before the application sees them: at most `most` bytes, in at most `seconds`.

    hosts: names under which the server may be asked, and by none but its own pages; None = any. A page whose name was
    made to lead to this machine, or that sends forms to it, would otherwise have its visitors' browsers ask it.
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
            await _refuse(send, ApiError(BAD, "a body has one length, got two; leave content-length out"))
            return
        try:
            body = await asyncio.wait_for(self._read(scope, receive), self.seconds)
        except asyncio.TimeoutError:
            await _refuse(send, ApiError(408, f"the body took longer than {self.seconds:g} s; send it faster"))
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
        """Why a request is that of somebody else's page, "" where it is none."""
        host, origin = (headers.get(name, b"").decode("latin-1").lower() for name in (b"host", b"origin"))
        if PORT.sub("", host) not in (self.hosts or ()):
            return "this server is asked under another name; use 127.0.0.1"
        if origin and origin.partition("://")[2] != host:
            return "this server answers no pages of others; ask it from a program"
        return ""

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None where the client left before its end."""
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        too_long = ApiError(TOO_LONG, f"a body may have {self.most} bytes, got more; send less")
        if not announced.isdigit() or int(announced[:20]) > DRAINED * self.most:
            raise too_long
        parts: list[bytes] = []
        size = kept = 0
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
                self.held, kept = self.held + len(part), kept + len(part)
                if self.held > HELD and size > SMALL:
                    raise ApiError(503, "too many large requests come at once; try again later", code="queue_full")
        finally:
            self.held -= kept


async def _refuse(send: Send, error: ApiError) -> None:
    """Answer and close: what is left of the body is not read."""
    body = encoded(error.body)
    headers = [
        (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close"),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
