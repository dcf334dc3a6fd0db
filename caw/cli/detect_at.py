"""`caw detect --at URL`: have a server test texts, as its `/.well-known/watermark.json` says. No key, no tokenizer."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Annotated, Any
from urllib.parse import urlsplit

from caw.cli.detect_output import Item
from caw.cli.detect_registry import KEYS
from caw.cli.errors import complain
from caw.cli.options import panel
from caw.io.show import visible

PATH, MOST, SECONDS = "/.well-known/watermark.json", 1 << 20, 90
PAUSE, PATIENCE = 5.0, 600.0  # seconds before a text that met the limit of requests is sent again, and in all
BUSY = 429
At = Annotated[str | None, panel(KEYS, "Have the server at this URL test the texts, as anybody may.", metavar="URL")]


def test_at(url: str, items: Sequence[Item], *, as_json: bool, single: bool) -> int:
    """Have texts tested and print the verdicts. Return how many were not tested. ValueError for no caw server.

    Texts go to the host that serves the description, and to no other; at its limit of requests, they wait.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"--at must be a server's URL, got {url!a}; give e.g. https://example.org")
    root = url.rstrip("/")
    document, where = _asked(root + PATH)
    verify, root = document.get("verify"), where.removesuffix(PATH)
    path = verify.get("path") if isinstance(verify, dict) else None
    if not isinstance(path, str) or not path.startswith("/") or root == where:
        raise ValueError(f"{root} must describe its mark at {PATH}, found something else; ask its operator")
    bad, patience = 0, PATIENCE
    for item in items:
        try:
            if not isinstance(item.content, str):
                raise ValueError("a server tests text, got token ids; give the text")
            told = _tested(root + path, item.content, patience)
        except ValueError as error:
            bad += 1
            if isinstance(error, _BusyError):
                patience = 0.0  # where one text waited in vain, others do not
            complain(item.said(str(error), single=single))
            continue
        verdict = item.said(visible(str(told["message"])), single=single)
        print(json.dumps({**told, "id": item.id}) if as_json else verdict)
    return bad


class _BusyError(ValueError):
    """The server's limit of requests is met."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows those of a description, but not to plain HTTP, and none of a text."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if req.data is not None or (req.type, urlsplit(newurl).scheme) == ("https", "http"):
            raise ValueError(f"{req.full_url} redirects to {newurl}; give that server to --at if you trust it")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _tested(url: str, text: str, patience: float) -> dict[str, Any]:
    """Return the verdict on one text; a text that meets the limit of requests waits. ValueError in one sentence."""
    until = time.monotonic() + patience
    while True:
        try:
            return _asked(url, {"text": text})[0]
        except _BusyError:
            if time.monotonic() + PAUSE > until:
                raise
            time.sleep(PAUSE)


def _asked(url: str, body: Mapping[str, str] | None = None) -> tuple[dict[str, Any], str]:
    """Return (a server's JSON object, the URL that it came from). ValueError, in one sentence, for anything else."""
    data, headers = None if body is None else json.dumps(body).encode(), {"content-type": "application/json"}
    opener = urllib.request.build_opener(_Redirects)
    try:
        with opener.open(urllib.request.Request(url, data, headers), timeout=SECONDS) as answer:
            told, where = json.loads(answer.read(MOST)), answer.geturl()
    except urllib.error.HTTPError as error:
        kind = _BusyError if error.code == BUSY and body is not None else ValueError
        raise kind(f"{url} answered with status {error.code}; {_why(error)}") from None
    except (OSError, HTTPException):  # no server there, or one of another protocol
        raise ValueError(f"{url} must be a server's address, got no answer; check it, and whether it runs") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        told, where = None, url
    if not isinstance(told, dict) or (body is not None and "message" not in told):
        raise ValueError(f"{url} must answer with a JSON object of a caw server, got something else; check the URL")
    return told, where


def _why(error: urllib.error.HTTPError) -> str:
    """Return what a caw server says about a request that it refuses, for others what to do."""
    try:
        return visible(" ".join(str(json.loads(error.read(MOST))["error"]["message"]).split()))
    except (OSError, HTTPException, ValueError, RecursionError, LookupError, TypeError):
        return "check the URL, or ask its operator"
