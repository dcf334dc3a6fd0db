"""What an answer of vLLM's server says of its mark: a header, for streams too.

    vllm serve MODEL --logits-processors caw.integrations.vllm:LogitsProcessor \\
        --middleware caw.integrations.vllm_answers.MarkedAnswers
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from caw.integrations.profiles import ARGUMENT, marks
from caw.integrations.vllm import VARIABLE

HEADER = b"caw-profile"
PATHS = ("/chat/completions", "/completions", "/responses")
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class MarkedAnswers:
    """ASGI middleware: each text's answer has the header `caw-profile`, with the name of its profile, or "off".

    The name is percent-encoded. Answers that are errors have no header.
    """

    def __init__(self, app: Callable[[Any, Receive, Send], Awaitable[None]]) -> None:
        self._app, self._marks = app, marks(VARIABLE)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(PATHS):
            return await self._app(scope, receive, send)
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        profile = self._profile(b"".join(message.get("body", b"") for message in messages))

        async def replay() -> Any:
            return messages.pop(0) if messages else await receive()

        async def send_named(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200 and profile is not None:
                message = {**message, "headers": [*message.get("headers", []), (HEADER, profile)]}
            await send(message)

        await self._app(scope, replay, send_named)

    def _profile(self, body: bytes) -> bytes | None:
        """The profile that a request chooses; None for what vLLM refuses."""
        try:
            given = json.loads(body).get("vllm_xargs") or {}
            return quote(str(given.get(ARGUMENT, self._marks.default))).encode()
        except (AttributeError, ValueError, RecursionError):
            return None
