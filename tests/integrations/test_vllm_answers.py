"""The header of an answer of vLLM's server."""

import asyncio
from typing import Any

import pytest

from caw.integrations.vllm_answers import MarkedAnswers


@pytest.mark.usefixtures("installed")
def test_answers_name_their_profile_and_errors_do_not() -> None:
    """An application that answers with the body it was sent, in two pieces."""

    def answer(body: bytes, path: str = "/v1/completions", status: int = 200) -> tuple[list[Any], bytes]:
        pieces = [{"body": body[:9], "more_body": True}, {"body": body[9:]}]
        sent: list[Any] = []

        async def echo(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": status})
            await send({"type": "http.response.body", "body": (await receive())["body"] + (await receive())["body"]})

        async def receive() -> Any:
            return pieces.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(MarkedAnswers(echo)({"type": "http", "method": "POST", "path": path}, receive, send))
        return sent[0].get("headers", []), sent[1]["body"]

    off = b'{"vllm_xargs": {"caw_profile": "off"}}'
    for body, name in ((b'{"prompt": "a"}', b"kgw"), (off, b"off"), (b"[1, 2, 3, 4, 5]", None), (b"[" * 99999, None)):
        assert answer(body) == ([(b"caw-profile", name)] if name else [], body)
    assert answer(off, status=400)[0] == answer(off, "/tokenize")[0] == []
