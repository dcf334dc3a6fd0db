"""A mark that describes itself, and `caw detect --at`, which needs nothing else."""

import contextlib
import hashlib
import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from cli.running import assert_refused, run
from serve.serving import DIRECTORY, KEY, MARK, NAME, Directory, Running, alone, parts, running

from caw.cli import detect_at
from caw.serve.contracts import LEVEL, MarkKey, Tenant


class Public(Directory):
    def detection_keys(self, tenant: Tenant | None) -> tuple[MarkKey, ...]:
        return (MarkKey("k1", KEY),)


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(directory=Public(DIRECTORY.tenants)) as found:
        yield found


def at(served: Running, *arguments: str, **settings: Any) -> Any:
    return run("detect", "--at", served.server.url, *arguments, **{"key": None, **settings})


def test_the_document_holds_what_a_detector_needs_and_no_key(served: Running) -> None:
    with urllib.request.urlopen(f"{served.server.url}/.well-known/watermark.json") as answer:
        told = json.load(answer)
    vocabulary = sorted(parts()[1].get_vocab().items(), key=lambda pair: pair[1])
    digest = hashlib.sha256(json.dumps(vocabulary, separators=(",", ":")).encode()).hexdigest()
    assert told["tokenizer"] == {"vocab_size": len(parts()[1]), "sha256": digest}
    assert (told["model"], told["format"]["name"], told["context_width"]) == (NAME, "kgw", MARK.window)
    assert "key" not in told["format"] and str(KEY) not in json.dumps(told["format"])
    assert told["verify"]["false_positive_rate"] == LEVEL and told["verify"]["path"] == "/v1/detect"
    assert told["verify"]["languages"] == ["en", "de", "fr", "es", "zh", "ja"]


def test_a_server_tests_texts_for_whoever_has_neither_key_nor_tokenizer(served: Running, tmp_path: Any) -> None:
    [marked] = alone("the sky", max_new_tokens=150)
    result = at(served, "--text", marked)
    assert (result.exit_code, result.stdout) == (0, "The text carries a mark of this service.\n"), result.stderr
    lines = tmp_path / "texts.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in (marked, "short", [1, 2])))
    several = at(served, "--input", str(lines), "--json")
    found = [json.loads(line) for line in several.stdout.splitlines()]
    assert several.exit_code == 1 and "line 3: a server tests text, got token ids" in several.stderr
    assert [(one["id"], one["verdict"]) for one in found] == [(1, "marked"), (2, "too short")]
    too_long = at(served, "--text", "x" * 100_001)
    assert too_long.exit_code == 1 and "status 400; text must be 1 to 100000 characters" in too_long.stderr


def test_texts_wait_where_the_limit_of_requests_is_met(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    rates, waits = served.service.detection.rates, list[float]()

    def refilled(seconds: float) -> None:
        waits.append(seconds)
        rates._left.clear()

    monkeypatch.setattr(detect_at.time, "sleep", refilled)
    monkeypatch.setattr(rates, "rate", 0.0)
    results = [at(served, "--text", "x") for _ in range(12)]
    assert {(one.exit_code, one.stdout) for one in results} == {(0, "The text is too short to decide.\n")} and waits
    monkeypatch.setattr(detect_at, "PATIENCE", 0.0)
    last = [at(served, "--text", "x") for _ in range(11)][-1]
    assert (last.exit_code, last.stdout) == (1, "") and "status 429; rate limit for requests" in last.stderr
    rates._left.clear()
    monkeypatch.setattr(detect_at.time, "sleep", waits.append)
    monkeypatch.setattr(detect_at, "PATIENCE", detect_at.PAUSE + 0.1)
    with another(429, '{"verify": {"path": "/"}}') as (url, got):
        busy = run("detect", "--at", url, "--input", "-", key=None, stdin='{"text": "one"}\n{"text": "two"}\n')
    assert busy.exit_code == 1 and got.count('{"text": "one"}') > 1 == got.count('{"text": "two"}')


def test_what_has_no_effect_there_is_refused(served: Running) -> None:
    for option in ("--fpr", "--tokenizer", "--qq"):
        assert_refused(at(served, "--text", "x", option, "0.1"), f"got {option} as well; leave one out")
    for url, why in (
        ("file:///etc/passwd", "must be a server's URL"), (f"{served.server.url}/v1", "answered with status 404"),
        *((url, "got no answer") for url in ("http://127.0.0.1:1", "http://127.0.0.1:port", "http://no name.example")),
    ):  # fmt: skip
        assert_refused(run("detect", "--at", url, "--text", "x", key=None), why)


@contextlib.contextmanager
def another(status: int = 200, body: str = "", where: str = "") -> Iterator[tuple[str, list[str]]]:
    """A server of one document, which redirects what else it gets: its URL, and the bodies that it got."""
    got: list[str] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if body else status)
            if not body:
                self.send_header("location", where + self.path)
            self.end_headers()
            self.wfile.write(body.encode())

        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["content-length"])).decode())
            self.send_response(status)
            self.send_header("location", where + self.path)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    other = HTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{other.server_port}", got
    finally:
        other.shutdown()
        other.server_close()


@pytest.mark.parametrize("body", ["no JSON", "[1]", "{}", '{"verify": {"path": "//elsewhere.example/"}}'])
def test_an_answer_of_something_else_says_so(body: str) -> None:
    """A path must not lead to another host."""
    with another(body=body) as (url, _):
        result = run("detect", "--at", url, "--text", "x", key=None)
    assert result.exit_code in (1, 2) and result.stdout == "" and "caw: http" in result.stderr


@pytest.mark.every_case
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_text_goes_to_the_host_of_the_description_and_no_further(served: Running, status: int) -> None:
    served.service.detection.rates._left.clear()
    with another(status, where=served.server.url) as (url, got):
        result = run("detect", "--at", url, "--text", "x", key=None)
        assert (result.stdout, got) == ("The text is too short to decide.\n", [])  # it went where the document is
    with (
        another(body="{}") as (stranger, heard),
        another(status, '{"verify": {"path": "/v1/detect"}}', stranger) as (url, got),
    ):
        result = run("detect", "--at", url, "--text", "x", key=None)
    assert result.exit_code == 1 and f"redirects to {stranger}/v1/detect; give that server" in result.stderr
    assert (got, heard) == (['{"text": "x"}'], [])
