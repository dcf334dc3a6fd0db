"""A server in a process of its own, attacked: it goes on, answers others, leaks nothing, and its log has no fault."""

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from serve.besieged import NAME, Besieged, Keep, receive
from serve.serving import until
from tiny import save_tiny

pytestmark = pytest.mark.gate("siege")
POST = b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
MANY = 10_000  # short requests


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def keep(tmp_path_factory: pytest.TempPathFactory) -> Keep:
    return Keep.build(f"sqlite:///{tmp_path_factory.mktemp('keep') / 'keys.db'}")


@pytest.fixture(scope="module")
def server(model: Path, keep: Keep) -> Iterator[Besieged]:
    options = ("--read-timeout", "2", "--write-timeout", "2", "--max-connections", "200", "--batch-size", "8")
    with Besieged(model, keep, *options) as found:
        yield found
        found.stop()


@pytest.fixture(autouse=True)
def unharmed(server: Besieged) -> Iterator[None]:
    """After every attack: others are answered as before, at once, and nothing goes on for nobody."""
    before = server.complete(prompt="a model", max_tokens=20)
    yield
    assert server.process.poll() is None
    assert server.complete(prompt="a model", max_tokens=20) == before
    assert server.patience() < 1
    server.idle()
    server.check_log()


MEGABYTE = 900_000
BODIES = {
    "nulls": b'{"model":"tiny","prompt":[' + b"null," * (MEGABYTE // 5) + b"null]}",
    "numbers": b'{"model":"tiny","prompt":[' + b"1," * (MEGABYTE // 2) + b"1]}",
    "lists": b'{"model":"tiny","prompt":[' + b"[]," * (MEGABYTE // 3) + b"[]]}",
    "kinds": b'{"model":"tiny","prompt":[' + b'1,"a",' * (MEGABYTE // 6) + b"1]}",
    "letters": json.dumps({"model": NAME, "prompt": "a" * MEGABYTE}).encode(),
    "spaces": json.dumps({"model": NAME, "prompt": " " * MEGABYTE}).encode(),
    "accents": json.dumps({"model": NAME, "prompt": "\u0301" * (MEGABYTE // 6)}).encode(),
    "names": b'{"model":"tiny","prompt":"x"' + b"".join(b',"p%d":1' % n for n in range(MEGABYTE // 11)) + b"}",
    "deep lists": b'{"model":"tiny","prompt":' + b"[" * (MEGABYTE // 2) + b"]" * (MEGABYTE // 2) + b"}",
    "deep objects": b'{"model":"tiny","prompt":"x","metadata":' + b'{"a":' * (MEGABYTE // 6) + b"1}",
}
CHATS = {
    "messages": b'{"model":"tiny","messages":[' + b"1," * (MEGABYTE // 2) + b"1]}",
    "parts": b'{"model":"tiny","messages":[{"role":"user","content":['
    + b'{"type":"image"},' * (MEGABYTE // 17)
    + b"1]}]}",
}


@pytest.mark.parametrize("name", [*BODIES, *CHATS])
@pytest.mark.parametrize("key", ["acme", "a stranger"])
def test_bodies_made_to_cost(server: Besieged, name: str, key: str) -> None:
    body, path = BODIES.get(name), "/v1/completions"
    if body is None:
        body, path = CHATS[name], "/v1/chat/completions"
    length, waited = len(body), 0.0
    with server.connect() as connection:
        connection.sendall(server.head(length, path=path, key=key) + body)
        for _ in range(20):
            waited = max(waited, server.patience())
        answer = receive(connection)
    status = answer.split(b" ", 2)[1]
    # what is no JSON is refused before anybody is asked who they are
    unread = any(said in answer for said in (b"parsing the body", b"must be JSON in UTF-8"))
    assert status == (b"401" if key != "acme" else b"400") or (status == b"400" and unread), answer[:300]
    assert waited < 2.0


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /" + b"a" * 200_000, b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"y" * 200_000,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 50_000, b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
        POST + b"content-length: -5\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        b"GET /%00%ff HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", b"OPTIONS * HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_no_request(server: Besieged, sent: bytes) -> None:
    files = server.files
    with server.connect(10) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
        answer = receive(connection)
    assert not answer.startswith(b"HTTP/1.1 2") or b"upgrade: websocket" in sent
    until(lambda: server.files <= files + 1)


def test_connections_that_are_reset_or_half_closed(server: Besieged) -> None:
    whole, files = server.request(stream=True, max_tokens=400), server.files
    rng = random.Random(1)
    for number in range(120):
        connection = server.connect()
        connection.sendall(whole[: rng.choice([0, 1, 30, len(whole) - 1, len(whole)])])
        if number % 3 == 0:
            connection.shutdown(socket.SHUT_WR)
        if number % 2:
            time.sleep(rng.random() / 20)
        if number % 4 == 1:  # closing sends a reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    until(lambda: server.files <= files + 2)
    server.idle()


def test_ten_thousand_requests_leave_nothing_behind(server: Besieged) -> None:
    asyncio.run(many(server, MANY * 3 // 4))  # until the caches of SQLite and of memory itself are full
    server.idle()
    before = server.resident, server.files, server.threads
    asyncio.run(many(server, MANY))
    server.idle()
    time.sleep(3)  # connections that were kept alive
    grown = server.resident - before[0]
    assert grown < 12 << 20, f"{grown >> 20} MiB"
    assert server.files <= before[1] + 4 and server.threads <= before[2] + 2


async def many(server: Besieged, count: int) -> None:
    kinds = [
        server.request(max_tokens=1), server.request(max_tokens=2, stream=True), server.request(max_tokens=0),
        server.request(key="nobody"), server.request(max_tokens=300, stream=True), server.head(3) + b"{]}",
        server.request(path="/v1/detect"), server.request(path="/nowhere"),
    ]  # fmt: skip

    async def client(number: int) -> None:
        rng = random.Random(number)
        for _ in range(count // 16):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            kind = rng.randrange(len(kinds))
            writer.write(kinds[kind])
            with contextlib.suppress(ConnectionError):
                assert await reader.read(200)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    await asyncio.gather(*map(client, range(16)))
