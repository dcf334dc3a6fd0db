"""No secret is in a message: one is planted in every place that takes one, and all output of every command is read."""

import http.client
import json
import logging
import traceback
from pathlib import Path
from typing import Any

import pytest
from cli.running import run
from serve.serving import DIRECTORY, NAME, MarkKey, Tenant, running
from serve.serving import Directory as Tenants

from caw.cli.program import COMMANDS, GROUPS
from caw.integrations import profiles

CANARY = "kanari-8f3a-vogel"
URLS = (
    f"postgresql+psycopg://caw:{CANARY}@127.0.0.1:1/keys", f"postgresql+psycopg://127.0.0.1:1/keys?password={CANARY}",
    f"postgresql+psycopg:///keys?host=127.0.0.1&port=1&sslpassword={CANARY}",
    f"postgres://caw:{CANARY}@127.0.0.1:1/keys",
    f"postgresql+psycopg://caw:{CANARY}@127.0.0.1:{CANARY}/keys", f"nosuch://caw:{CANARY}@127.0.0.1/keys",
    f"caw:{CANARY}@h",
    f"postgresql+psycopg://127.0.0.1:1/keys?nosuchoption={CANARY}", f"sqlite:////nowhere/at/all.db?key={CANARY}",
)  # fmt: skip
ENVIRONMENT = {
    "CAW_KEY": CANARY, "CAW_MASTER_KEY": CANARY, "CAW_REGISTRY": URLS[0], "OPENAI_API_KEY": CANARY, "HOUSE": CANARY,
    "CAW_TRACEBACK": "",
}  # fmt: skip
EVERY = [[name] for name in COMMANDS] + [[group, name] for group, found in GROUPS.items() for name in found.commands]
MARK = {"name": "kgw"}


def output(result: Any) -> str:
    return result.output + result.stderr + "".join(traceback.format_exception(*result.exc_info))


@pytest.mark.parametrize("command", EVERY, ids=" ".join)
def test_commands_show_no_secret_of_the_environment(command: list[str], tmp_path: Path) -> None:
    more = [["--help"], ["--registry", URLS[1]], ["--key", CANARY, "--no-such-option"], ["--key-env", CANARY], ["x"]]
    for arguments in more if command[0] not in ("demo", "benchmark") else more[:1]:
        assert CANARY not in output(run(*command, *arguments, environment=ENVIRONMENT, key=CANARY)), arguments


@pytest.mark.parametrize("url", URLS)
def test_urls_of_registries(url: str) -> None:
    pytest.importorskip("psycopg", reason="needs psycopg; pip install 'caw[postgres]'")
    master = run("keys", "master-key").stdout.strip()
    for create in ([], ["create", "acme"]):
        command = ["keys", *(create or ["list"]), "--registry", url]
        result = run(*command, environment={"CAW_MASTER_KEY": master})
        assert result.exit_code == 2 and result.stderr.count("\n") == 1 and CANARY not in output(result), output(result)


@pytest.mark.parametrize("entry", [
    {"key": CANARY, "top_k": 3}, {"key": CANARY, "delta": -1}, {"key": [CANARY]}, {"key": {"a": CANARY}},
    {"key_env": CANARY},
    {"key": CANARY, "key_env": "X"}, {"key": f" {CANARY}"}, {"key": CANARY, "format": "transformers"}, {CANARY: 1},
    CANARY,
])  # fmt: skip
def test_lists_of_watermarks(entry: Any, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "keys.yaml").write_text(json.dumps({"watermarks": [entry]}))
    result = run("detect", "--tokenizer", "smollm2-135m", "--text", "x", "--config", str(tmp_path / "keys.yaml"))
    known = "is not a parameter" in result.stderr  # the name of a parameter is shown
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and (known or CANARY not in output(result))


@pytest.mark.parametrize("said", [
    {"keys": {"a": CANARY}}, {"keys": {"a": {"env": CANARY}}}, {"keys": {"a": {"file": f"/{CANARY}"}}},
    {"keys": {"a": [CANARY]}},
    {"keys": {"a": {"env": [CANARY]}}}, {"keys": {"a": {"registry": URLS[0], "tenant": "a"}}},
    {"keys": {"a": {"secret": CANARY}}},
    {"profiles": {"a": {"key": CANARY, "watermark": MARK}}}, {"profiles": {"a": {"key": [CANARY], "watermark": MARK}}},
    {"keys": {"a": CANARY}, "profiles": {"a": {"key": "a", "watermark": {**MARK, "key": CANARY}}}},
    {"keys": {"a": CANARY}, "profiles": {"a": {"key": "a", "watermark": {**MARK, "delta": "x"}}}}, {"keys": CANARY},
])  # fmt: skip
def test_files_of_profiles(said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAW_MASTER_KEY", "0" * 43 + "=")
    path, whole = tmp_path / "p.json", {"keys": {}, "profiles": {"a": {"key": "a", "watermark": MARK}}, "default": "a"}
    path.write_text(json.dumps(whole | said))
    try:
        assert CANARY not in repr(profiles.load(path)) and said["keys"] == {"a": CANARY}
    except (OSError, ValueError) as error:
        assert CANARY not in "".join(traceback.format_exception(error))
        assert "\n" not in str(error)


def test_a_server_shows_no_key(caplog: pytest.LogCaptureFixture) -> None:
    """In answers to right and wrong requests of every path, nor in its log, nor in what it holds."""
    tenants = Tenants({"one": Tenant("one", MarkKey("k1", CANARY)), CANARY: DIRECTORY.tenants["two"]})
    with caplog.at_level(logging.DEBUG), running(directory=tenants) as served:
        seen = [repr(served.service), repr(served.service.settings), repr(tenants.tenants["one"].key)]
        app: Any = served.server.config.app
        for path in [*(each.path for each in app.routes), "/v1/none", "//v1//models/"]:
            for body in ({"model": NAME, "prompt": "a", "text": "a", "max_tokens": 2}, {"model": 1}, ["x"]):
                for key in ("one", CANARY, f"{CANARY}x"):
                    sent = {"authorization": f"Bearer {key}"}
                    seen += [str(_answer(served.port, method, path, body, sent)) for method in ("GET", "POST")]
    assert CANARY not in "".join(seen) + caplog.text


def _answer(port: int, method: str, path: str, body: Any, sent: dict[str, str]) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, json.dumps(body), {"content-type": "application/json", **sent})
    return connection.getresponse().read()
