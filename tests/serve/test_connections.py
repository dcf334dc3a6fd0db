"""Connections: clients that are slow, take nothing, or are too many."""

import contextlib
import gc
import json
import socket
import time
import weakref
from collections.abc import Iterable

import pytest
from serve.serving import Running, running, until
from serve.test_answering import ASK, everything

from caw.decoding.eager_step import EagerStep
from caw.serve import connections
from caw.serve import running as module


def slow_client(served: Running) -> socket.socket:
    """A connection whose buffers hold little."""
    for listening in served.server.servers[0].sockets:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    slow.connect(("127.0.0.1", served.port))
    return slow


def test_a_client_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = EagerStep.decode  # 500 of them shall last longer than such a client is waited for, on any machine
    monkeypatch.setattr(EagerStep, "decode", lambda *given: (time.sleep(0.01), decode(*given))[1])
    with running(write_timeout=0.3, max_length=512, batch=2, drafts=False) as served:
        slow = slow_client(served)
        ask = {**ASK, "stream": True, "max_tokens": 500, "logprobs": 5, "n": 2}
        body = json.dumps(ask).encode()
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer one\r\n"
                     b"content-length: %d\r\ncontent-type: application/json\r\n\r\n" % len(body) + body)  # fmt: skip
        until(lambda: served.log.begun)
        assert served.complete("the sky", max_tokens=5).choices[0].text
        served.idle()
        assert sorted(one.ending for one in served.log.closed) == ["cancelled", "cancelled", "complete"]
        own = slow.getsockname()
        until(lambda: own not in {one.client for one in served.server.server_state.connections}, 5)
        slow.close()


HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer one\r\n" + (
    b"content-type: application/json\r\ntransfer-encoding: chunked\r\n"
)


def sent_in_chunks(served: Running, parts: Iterable[bytes]) -> bytes:
    """The answer to a body in these chunks; nothing where the connection was cut."""
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        try:
            client.sendall(HEAD + b"connection: close\r\n\r\n" + chunks + b"0\r\n\r\n")
            return everything(client)
        except ConnectionError:
            return b""


def test_a_body_in_chunks_of_a_byte_is_cut_off(
    served: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes as long to read as one of a kilobyte: a megabyte of them took 12 s, and others waited for 4 s."""
    read, sizes = connections.TimeoutProtocol.data_received, []
    monkeypatch.setattr(
        connections.TimeoutProtocol, "data_received", lambda own, data: (sizes.append(len(data)), read(own, data))[1]
    )
    assert sent_in_chunks(served, [b" "] * 1_000_000) == b""
    assert caplog.text.count("a body came in more than 32768 chunks of less than 64 bytes") == 1
    # that of asyncio's transports is undocumented
    assert max(sizes) <= connections.AT_ONCE and sum(sizes) < 32_768 * 6 + 2 * connections.AT_ONCE


@pytest.mark.parametrize("each", ["a line", "40 bytes"])
def test_a_body_of_many_lines_is_served(served: Running, each: str) -> None:
    asked = {**ASK, "prompt": [5] * 100, "max_tokens": 2}
    # the model here takes no 20,000 ids, so that the rest is space
    lines = [b"     \n"] * 20_000 + json.dumps(asked, indent=1).encode().splitlines(keepends=True)
    body = b"".join(lines)
    parts = lines if each == "a line" else [body[start : start + 40] for start in range(0, len(body), 40)]
    answer = sent_in_chunks(served, parts)
    assert answer.startswith(b"HTTP/1.1 200") and b'"prompt_tokens":100' in answer, answer[:200]


def test_a_request_with_two_lengths_is_refused_with_all_behind_it(served: Running) -> None:
    """A proxy that goes by the other length passes on, as a body, what would be a request here."""
    hidden = b"0\r\n\r\nGET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(hidden) + hidden)
        answer = everything(client)
    assert answer.count(b"HTTP/1.1 ") == 1 and b"HTTP/1.1 400" in answer and b"a body must have one length" in answer


def test_a_client_that_takes_little_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LEAST_RATE", 2000)
    with running(write_timeout=0.2) as served:
        slow = slow_client(served)
        body = json.dumps({**ASK, "max_tokens": 30, "logprobs": 5, "n": 8}).encode()
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer one\r\n"
                     b"content-type: application/json\r\nconnection: close\r\n"
                     b"content-length: %d\r\n\r\n" % len(body) + body)  # fmt: skip
        parts, started = [], time.monotonic()
        while part := slow.recv(1024):
            parts.append(part)
            time.sleep(0.02)
        assert time.monotonic() - started > 0.4, "slower than write_timeout, or nothing is tested"
        answer = json.loads(b"".join(parts).partition(b"\r\n\r\n")[2])
        assert len(answer["choices"]) == 8


def test_slow_heads_and_bodies_are_not_waited_for() -> None:
    with running(read_timeout=0.3) as served:
        for sent in (
            b"", b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n",
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{",
        ):  # fmt: skip
            started = time.monotonic()
            with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
                connection.sendall(sent)
                answer = everything(connection)
            assert time.monotonic() - started < 20
            assert (b"408" in answer) == sent.endswith(b"{"), sent
        assert served.complete("the sky", max_tokens=3).choices[0].text


def test_of_too_many_connections_those_go_that_asked_nothing() -> None:
    """Whoever only opens connections keeps nobody else out."""
    with running(max_connections=3) as served:
        idle = [socket.create_connection(("127.0.0.1", served.port), timeout=30) for _ in range(2)]
        idle.append(socket.create_connection(("127.0.0.1", served.port), timeout=30))
        idle[2].sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{")
        until(lambda: len(served.server.server_state.connections) == 3)
        for _ in range(4):
            assert served.complete("the sky", max_tokens=3).choices[0].text
        for connection in idle:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""


def test_a_connection_that_has_ended_leaves_nothing_behind() -> None:
    with running() as served:
        gc.disable()
        try:
            with socket.create_connection(("127.0.0.1", served.port), timeout=30) as client:
                until(lambda: served.server.server_state.connections)
                one = weakref.ref(next(iter(served.server.server_state.connections)))
                client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                assert everything(client).startswith(b"HTTP/1.1 200")
            until(lambda: one() is None, 10)
        finally:
            gc.enable()


def test_more_connections_than_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(module.resource, "getrlimit", lambda kind: (100, 2000))
    monkeypatch.setattr(module.resource, "setrlimit", lambda kind, both: limits.append(both))
    module._allow_files(1000)
    assert limits == [(1256, 2000)]
    with pytest.raises(ValueError, match="max_connections must be at most 1744"):
        module._allow_files(1745)
