"""Clients that leave, are slow, or ask for too much; receipts that cannot be written; a server that is stopped."""

import asyncio
import http.client
import json
import logging
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from serve.serving import DIRECTORY, NAME, Kept, Running, alone, parts, running, until

from caw.detectable.receipts import text_digest
from caw.models.eval_mode import model_lock
from caw.serve import body_limits
from caw.serve.contracts import Begun, MarkRules
from caw.serve.desk import WORKERS
from caw.serve.log_lines import LINES, SECONDS, LogLines
from caw.serve.requests import CompletionRequest

ASK: dict[str, Any] = {"model": NAME, "prompt": "the sky", "temperature": 0}
SENT = {"authorization": "Bearer one", "content-type": "application/json"}


def post(port: int, body: bytes, path: str = "/v1/completions", **headers: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    sent = {**SENT, **headers}
    connection.request("POST", path, body, sent)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def raw_stream(port: int, **settings: Any) -> tuple[socket.socket, bytes]:
    """A connection on which a stream has begun, and what came so far."""
    body = json.dumps({**ASK, "stream": True, **settings}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer one\r\n"
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(f"{head}content-length: {len(body)}\r\ncontent-type: application/json\r\n\r\n".encode() + body)
    seen = b""
    while b"data: " not in seen:
        seen += connection.recv(65536)
    return connection, seen


def everything(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_a_client_that_leaves_frees_its_row(served: Running) -> None:
    before = len(served.log.closed)
    connection, _ = raw_stream(served.port, max_tokens=240)
    connection.close()
    served.idle()
    receipt = served.log.closed[before]
    assert receipt.ending == "cancelled" and 0 < receipt.tokens < 240 and receipt.finish_reason == ""
    [whole] = alone("the sky", max_new_tokens=240)
    assert receipt.digest in {text_digest(whole[:length]) for length in range(len(whole))}
    assert served.complete("the sky", max_tokens=20).choices[0].text == alone("the sky", max_new_tokens=20)[0]


def test_a_closed_terminal_ends_a_server_well_unless_it_runs_under_nohup(served: Running) -> None:
    for handler, while_it_runs in ((signal.SIG_DFL, served.server.handle_exit), (signal.SIG_IGN, signal.SIG_IGN)):
        before = signal.signal(signal.SIGHUP, handler)
        with served.server.capture_signals():
            assert signal.getsignal(signal.SIGHUP) == while_it_runs
        assert signal.signal(signal.SIGHUP, before) == handler


def test_a_client_that_leaves_while_it_waits_is_forgotten() -> None:
    with running(batch=1) as served:
        first, _ = raw_stream(served.port, max_tokens=240)
        body = json.dumps({**ASK, "max_tokens": 200}).encode()
        second = http.client.HTTPConnection("127.0.0.1", served.port)
        second.request("POST", "/v1/completions", body, SENT)
        until(lambda: len(served.log.begun) == 2)
        second.close()
        first.close()
        served.idle()
        assert [one.ending for one in served.log.closed] == ["cancelled", "cancelled"]
        assert served.service.engine.tokens < 300


def test_more_texts_than_may_wait_are_refused() -> None:
    with running(batch=1, max_waiting=1) as served:
        streams = [raw_stream(served.port, max_tokens=250)[0]]
        body = json.dumps({**ASK, "max_tokens": 3, "n": 2}).encode()
        status, answer = post(served.port, body)
        assert (status, answer["error"]["type"]) == (429, "rate_limit_error")
        assert answer["error"]["code"] == "queue_full" and len(served.log.begun) == 1
        for stream in streams:
            stream.close()
        served.idle()
        assert served.complete("the sky", max_tokens=3).choices[0].text


def test_a_request_that_takes_too_long_ends() -> None:
    with running(timeout=0.05) as served:
        with pytest.raises(openai.InternalServerError, match=r"exceeded the timeout of 0.05 s") as caught:
            served.complete("the sky", max_tokens=250)
        assert caught.value.status_code == 504
        with pytest.raises(openai.APIError, match=r"exceeded the timeout of 0.05 s"):
            list(served.complete("the sky", max_tokens=250, stream=True))
        served.idle()
        assert {one.ending for one in served.log.closed} == {"failed"}


def test_no_text_is_made_whose_receipt_cannot_be_begun() -> None:
    with running(log=Kept(fails="begin")) as served:
        status, answer = post(served.port, json.dumps({**ASK, "stream": True}).encode())
        assert status == 503 and answer["error"]["message"].startswith("no receipt can be written")
        assert served.service.engine.tokens == 0
        connection = http.client.HTTPConnection("127.0.0.1", served.port)
        connection.request("GET", "/health")
        health = connection.getresponse()
        assert health.status == 503 and b"receipts cannot be written" in health.read()


def test_a_request_that_is_cancelled_while_its_receipt_begins_closes_it() -> None:
    entered, go = threading.Event(), threading.Event()

    class Slow(Kept):
        def begin(self, begun: Begun) -> Any:
            entered.set()
            assert go.wait(60)
            return super().begin(begun)

    with running(log=Slow()) as served:
        asked = CompletionRequest(model=NAME, prompt="x", n=3)
        order = served.service.order(asked, DIRECTORY.tenants["one"], "x-")
        waits = asyncio.run_coroutine_threadsafe(order, served.service.engine._loop)
        assert entered.wait(60)
        waits.cancel()
        go.set()
        until(lambda: served.log.closed)
        served.idle()
        assert [one.ending for one in served.log.closed] == ["failed"] and not served.service.open


def test_a_client_that_leaves_while_its_receipt_is_being_closed_loses_it_not() -> None:
    go = threading.Event()
    with running() as served:
        connection, _ = raw_stream(served.port, max_tokens=200)
        with model_lock(parts()[0]):  # so that the text does not end before they are
            for _ in range(WORKERS):
                served.service.workers.submit(go.wait)
        until(lambda: served.service.engine.inbox.under_way == 0)
        connection.close()
        until(lambda: all(order.texts[0].closing is not None for order in served.service.open))
        time.sleep(0.2)
        assert not served.log.closed
        go.set()
        until(lambda: served.log.closed and not served.service.open, 10)
        served.idle()
        assert len(served.log.closed) == 1


def test_a_client_that_leaves_between_two_whole_texts_has_a_receipt_of_nothing() -> None:
    with running(batch=1, rules=MarkRules(detectable_at=1e-2)) as served:
        connection = http.client.HTTPConnection("127.0.0.1", served.port)
        connection.request("POST", "/v1/completions", json.dumps({**ASK, "max_tokens": 200, "n": 2}).encode(), SENT)
        until(lambda: any(order.texts and order.texts[0].done for order in served.service.open))
        connection.close()
        served.idle()
        first = served.log.closed[0]
        assert (first.ending, first.digest, first.tokens) == ("cancelled", text_digest(""), 0)
        assert first.p_value is None and first.detected is None and first.tested is None


def test_a_text_whose_p_value_cannot_be_told_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as served:
        monkeypatch.setattr(served.service.planned, "p_value", lambda text, key: 1 / 0)
        assert served.complete("the sky", max_tokens=9).choices[0].text == alone("the sky", max_new_tokens=9)[0]
        served.idle()
        assert (served.log.closed[0].ending, served.log.closed[0].p_value) == ("complete", None)


def test_a_receipt_that_cannot_be_closed_ends_the_stream_without_done(caplog: pytest.LogCaptureFixture) -> None:
    log = Kept()
    with running(log=log) as served:
        connection, seen = raw_stream(served.port, max_tokens=60)
        log.fails = "close"
        seen += everything(connection)
        assert b"the text's receipt could not be written" in seen
        assert b"[DONE]" not in seen and b'"finish_reason":"' not in seen and not seen.endswith(b"0\r\n\r\n")
        status, answer = post(served.port, json.dumps({**ASK, "max_tokens": 5}).encode())
        assert status == 500 and "receipt" in answer["error"]["message"]
        log.fails = ""
    assert set(written(caplog)) == {"a receipt could not be closed: no space left on device"}


def test_receipts_are_begun_before_the_first_byte_and_closed_before_the_last(served: Running) -> None:
    before = len(served.log.closed)
    for chunk in served.complete("the sky", max_tokens=30, stream=True):
        assert len(served.log.begun) > before
        if chunk.choices[0].finish_reason:
            assert len(served.log.closed) == before + 1
    begun, closed = served.log.begun[-1], served.log.closed[-1]
    assert (begun.tenant, begun.key_id, begun.model, begun.unmarked) == ("one", "k1", NAME, "")
    assert "KGW(gamma=0.25" in begun.watermark and "key" not in begun.watermark.replace("subkey", "")
    assert (closed.ending, closed.finish_reason, closed.tokens) == ("complete", "length", 30)
    assert closed.digest == text_digest(alone("the sky", max_new_tokens=30)[0])


def test_bodies_that_are_too_large_are_refused(served: Running) -> None:
    body = json.dumps({**ASK, "prompt": "x" * (1 << 20)}).encode()
    status, answer = post(served.port, body)
    assert status == 413 and "a body may have at most 1048576 bytes" in answer["error"]["message"]


@pytest.mark.parametrize("chunks", [30, 200])
def test_bodies_that_do_not_say_how_large_they_are_are_refused(served: Running, chunks: int) -> None:
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=60)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
    chunk, seen = b"10000\r\n" + b" " * 65536 + b"\r\n", b""
    try:
        for _ in range(chunks):
            connection.sendall(chunk)
        connection.sendall(b"0\r\n\r\n")
        seen = everything(connection)
    except OSError:  # closed while we were sending
        assert chunks == 200
    assert b" 413 " in seen or chunks == 200


def test_many_large_bodies_at_once_are_refused_and_small_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand strangers who each hold back the last byte of a megabyte would fill a gigabyte."""
    monkeypatch.setattr(body_limits, "HELD", 200_000)
    monkeypatch.setattr(body_limits, "SMALL", 1000)
    guards: list[body_limits.BodyLimits] = []
    made = body_limits.BodyLimits.__init__
    monkeypatch.setattr(
        body_limits.BodyLimits, "__init__", lambda own, *a, **k: (guards.append(own), made(own, *a, **k))[1]
    )
    large = json.dumps({**ASK, "prompt": "x" * 150_000}).encode()
    with running(max_length=64) as served:
        assert post(served.port, large)[0] == 400, "too long for the model, not for the guard"
        holding = socket.create_connection(("127.0.0.1", served.port), timeout=60)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(large)
        holding.sendall(head + large[:-1])
        until(lambda: guards[-1].held == len(large) - 1)
        assert post(served.port, large)[0] == 503
        assert served.complete("the sky", max_tokens=2).choices[0].text
        holding.close()
        until(lambda: post(served.port, large)[0] == 400)


def test_a_local_server_is_asked_under_its_own_names_only(served: Running) -> None:
    for host, status in (
        ("localhost:80", 200), ("LOCALHOST", 200), ("[::1]:8000", 200), ("evil.example:80", 403),
        ("127.0.0.1.evil.example", 403), ("", 403),
    ):  # fmt: skip
        assert post(served.port, json.dumps({**ASK, "max_tokens": 2}).encode(), host=host)[0] == status


@pytest.mark.parametrize(
    "origin, status", [("http://evil.example", 403), ("null", 403), ("http://localhost:8000", 200)]
)
def test_a_local_server_answers_no_pages_of_others(served: Running, origin: str, status: int) -> None:
    """A page can have its visitors' browsers send a body without a type, which is taken for JSON elsewhere."""
    body = json.dumps({**ASK, "max_tokens": 2}).encode()
    assert post(served.port, body, host="localhost:8000", origin=origin)[0] == status


def test_a_browsers_form_is_no_request(served: Running) -> None:
    """What pages of others can have a browser send without asking first."""
    status, answer = post(served.port, json.dumps(ASK).encode(), **{"content-type": "text/plain"})
    assert status == 400 and "send one with content-type: application/json" in answer["error"]["message"]


def test_a_stopped_server_finishes_what_is_under_way() -> None:
    log = Kept()
    with ThreadPoolExecutor(1) as pool:
        with running(log=log, grace=60.0) as served:
            client = served.client()
            seen = threading.Event()

            def stream() -> str:
                text = ""
                for chunk in client.completions.create(**ASK, max_tokens=120, stream=True):
                    text += chunk.choices[0].text
                    seen.set()
                return text

            done = pool.submit(stream)
            assert seen.wait(60)
        assert done.result() == alone("the sky", max_new_tokens=120)[0]
    assert [one.ending for one in log.closed] == ["complete"]


def test_a_server_out_of_patience_ends_what_is_under_way() -> None:
    log = Kept()
    asked = json.dumps({**ASK, "max_tokens": 250}).encode()
    with running(log=log, grace=0.0, batch=1) as served:
        connections = [raw_stream(served.port, max_tokens=250)[0]]
        for _ in range(7):  # one after the other: a fast machine ends two of them before the server is down
            other = http.client.HTTPConnection("127.0.0.1", served.port)
            other.request("POST", "/v1/completions", asked, SENT)
        until(lambda: len(log.begun) == 8)
    assert len(log.closed) == 8 and [one.ending for one in log.closed].count("complete") < 6
    for connection in connections:
        connection.close()


LOG = logging.getLogger("caw.serve")


def written(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of the log, none of them with a traceback."""
    assert all(record.exc_info is None for record in caplog.records)
    assert all("\n" not in record.getMessage() for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


def test_a_tenant_without_a_key_is_a_line(served: Running, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(openai.InternalServerError, match="there is no active marking key"):
        served.complete("the sky", key="lost")
    assert written(caplog) == [
        "a tenant could not be looked up: tenant lost must have an active marking key, found none"
    ]


def test_a_flood_is_cut_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    lines = LogLines(LOG, lambda: now[0])
    for _ in range(LINES + 7):
        lines.failed("a receipt could not be written", OSError("the disk\nis full"))
    lines.failed("another", OSError("gone"))
    now[0] = SECONDS
    lines.failed("a receipt could not be written", OSError("the disk is full"))
    first = "a receipt could not be written: the disk is full"
    assert written(caplog) == [
        *[first] * LINES, "another: gone", f"{first} (7 more in the last minute not shown)",
    ]  # fmt: skip


def test_what_nobody_expects_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    lines = LogLines(LOG)
    for error in (KeyError("x"), UnicodeDecodeError("utf-8", b"", 0, 1, "")):
        lines.failed("a tenant could not be looked up", error)
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


@pytest.mark.parametrize(("path", "meant"), [
    ("//v1/chat/completions", "/v1/chat/completions"), ("/v1/chat/completions/", "/v1/chat/completions"),
    ("/v1/v1/completions", "/v1/completions"), ("/chat/completions", "/v1/chat/completions"),
    ("/api/v1/detect", "/v1/detect"),
    ("/v1/responses", "/v1/chat/completions"), ("/v1", "/, /.well-known/watermark.json, /health, /metrics"),
])  # fmt: skip
def test_an_unknown_path_is_answered_with_the_one_that_is_meant(served: Running, path: str, meant: str) -> None:
    status, answer = post(served.port, b"{}", path)
    assert status == 404 and answer["error"]["message"].startswith(f"this server has no such path; use {meant}")


def test_a_stream_is_not_held_back_by_nginx_and_an_offered_upgrade_says_nothing(
    served: Running, caplog: pytest.LogCaptureFixture
) -> None:
    connection, seen = raw_stream(served.port, max_tokens=2)
    assert b"x-accel-buffering: no\r\n" in seen
    connection.close()
    upgrade = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQ"}
    assert post(served.port, json.dumps({**ASK, "max_tokens": 2}).encode(), **upgrade)[0] == 200
    assert caplog.text == ""
