"""`caw detect --at URL`: have a server test texts, as its `/.well-known/watermark.json` says. No key, no tokenizer."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Annotated, Any

from caw.cli.detect_output import Item
from caw.cli.detect_registry import KEYS
from caw.cli.errors import complain
from caw.cli.options import panel
from caw.io.show import visible

PATH, MOST, SECONDS = "/.well-known/watermark.json", 1 << 20, 90
At = Annotated[str | None, panel(KEYS, "Have the server at this URL test the texts, as anybody may.", metavar="URL")]


def test_at(url: str, items: Sequence[Item], *, as_json: bool, single: bool) -> int:
    """Have texts tested and print the verdicts. Return how many were not tested. ValueError for no caw server."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"--at must be a server's URL, got {url!a}; give e.g. https://example.org")
    root = url.rstrip("/")
    verify = _asked(root + PATH).get("verify")
    path = verify.get("path") if isinstance(verify, dict) else None
    if not isinstance(path, str) or not path.startswith("/"):
        raise ValueError(f"{root} must describe its mark at {PATH}, found something else; ask its operator")
    bad = 0
    for item in items:
        try:
            if not isinstance(item.content, str):
                raise ValueError("a server tests text, got token ids; give the text")
            told = _asked(root + path, {"text": item.content})
        except ValueError as error:
            bad += 1
            complain(item.said(str(error), single=single))
            continue
        verdict = item.said(visible(str(told["message"])), single=single)
        print(json.dumps({**told, "id": item.id}) if as_json else verdict)
    return bad


def _asked(url: str, body: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a server's JSON object. ValueError, in one sentence, for anything else."""
    data, headers = None if body is None else json.dumps(body).encode(), {"content-type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=SECONDS) as answer:
            told = json.loads(answer.read(MOST))
    except urllib.error.HTTPError as error:
        raise ValueError(f"{url} answered with status {error.code}; {_why(error)}") from None
    except (OSError, HTTPException):  # no server there, or one of another protocol
        raise ValueError(f"{url} must be a server's address, got no answer; check it, and whether it runs") from None
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict) or (body is not None and "message" not in told):
        raise ValueError(f"{url} must answer with a JSON object of a caw server, got something else; check the URL")
    return told


def _why(error: urllib.error.HTTPError) -> str:
    """Return what a caw server says about a request that it refuses, for others what to do."""
    try:
        return visible(" ".join(str(json.loads(error.read(MOST))["error"]["message"]).split()))
    except (OSError, HTTPException, ValueError, RecursionError, LookupError, TypeError):
        return "check the URL, or ask its operator"
