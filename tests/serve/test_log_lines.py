"""States that are to be expected write one line, not a traceback for each request."""

from __future__ import annotations

import logging

import openai
import pytest
from serve.serving import Kept, Running, running

from caw.serve.log_lines import LINES, SECONDS, LogLines

LOG = logging.getLogger("caw.serve")
PROMPT = "the sky is blue because"


def written(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of the log, none of them with a traceback."""
    assert all(record.exc_info is None for record in caplog.records)
    assert all("\n" not in record.getMessage() for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


def test_a_tenant_without_a_key_is_a_line(served: Running, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(openai.InternalServerError, match="there is no active marking key"):
        served.complete(PROMPT, key="lost")
    assert written(caplog) == [
        "a tenant could not be looked up: tenant lost must have an active marking key, found none"
    ]


def test_a_receipt_that_cannot_be_closed_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    log = Kept()
    with running(log=log) as server:
        log.fails = "close"
        with pytest.raises(openai.InternalServerError, match="the text's receipt could not be written"):
            server.complete(PROMPT)
    assert set(written(caplog)) == {"a receipt could not be closed: no space left on device"}


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
