"""`caw serve`: what it refuses before it loads a model, and a server in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from cli.running import KEY, assert_refused, run

from caw.registry import open_registry
from caw.registry.audit import export_lines, verify
from caw.registry.master_key import MasterKeys, new_master_key

pytestmark = pytest.mark.usefixtures("environment")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--host", "0.0.0.0"], "must listen at this machine alone"),
        (["--strict"], "strict belongs to found_at"), (["--found-at", "2"], "found_at must be a number in (0, 1)"),
        (["--port", "70000"], "port must be an integer"), (["--batch-size", "0"], "batch must be an integer"),
        (["--watermark", "none"], "marks all it says"), (["--proxy", "10.0.0.7"], "must not be reached by proxies"),
        (["--proxy", "me"], "proxies must be addresses or networks"),
        (["--policy", "fixed", "--theta", "0.5"], "option of policy capacity"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_before_a_model_is_loaded(arguments: list[str], said: str) -> None:
    result = run("serve", "--model", "no-such-model", *arguments)
    assert_refused(result, said)


def test_a_registry_stands_in_for_keys_and_receipts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    result = run("serve", "--model", "no-such-model", "--registry", url)
    assert_refused(result, "a registry has its own keys and receipts, got --key or CAW_KEY as well")
    result = run("serve", "--model", "no-such-model", "--registry", url, "--receipts", "r.jsonl", key=None)
    assert_refused(result, "got --receipts as well")


def test_a_key_is_needed() -> None:
    assert_refused(
        run("serve", "--model", "no-such-model", key=None), "needs a key to mark with, got none; set CAW_KEY"
    )


@pytest.mark.slow(seconds=12)
def test_a_server_in_a_process_of_its_own(model: str, tmp_path: Path) -> None:
    """It says where it listens, answers, writes receipts, shows no key, and ends on SIGTERM with exit code 0."""
    receipts = tmp_path / "receipts.jsonl"
    command = [sys.executable, "-m", "caw.cli", "serve", "--model", model, "--port", "0", "--name", "tiny",
               "--receipts", str(receipts), "--threads", "1", "--max-length", "128"]  # fmt: skip
    server = subprocess.Popen(command, env={**os.environ, "CAW_KEY": KEY}, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        said = []
        for line in server.stderr:
            said.append(line)
            if "listening at " in line:
                break
        url = said[-1].split("listening at ")[1].strip()
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60)
        answer = client.completions.create(model="tiny", prompt="the sky", max_tokens=9)
        server.send_signal(signal.SIGTERM)
        rest = server.stderr.read()
        assert server.wait(60) == 0
    finally:
        server.kill()
    assert answer.choices[0].text
    begun, closed = (json.loads(line) for line in receipts.read_text().splitlines())
    assert (begun["event"], closed["event"], begun["id"]) == ("begun", "closed", closed["id"])
    assert begun["tenant"] == "default" and len(begun["key_id"]) == 8 and closed["ending"] == "complete"
    assert KEY not in "".join([*said, rest, receipts.read_text()]) and "Traceback" not in rest
    assert receipts.stat().st_mode & 0o077 == 0


@pytest.mark.slow(seconds=12)
def test_a_server_with_a_registry(model: str, tmp_path: Path) -> None:
    """Strangers get 401, tenants text under their own key, and the receipts are those of the registry."""
    master, url = new_master_key(), f"sqlite:///{tmp_path / 'keys.db'}"
    registry = open_registry(url, MasterKeys.read({"CAW_MASTER_KEY": master}), create=True)
    tokens, ids = {}, {}
    for tenant in ("acme", "globex"):
        ids[tenant] = registry.marking.create(tenant).id
        _, tokens[tenant] = registry.api.create(tenant)
    command = [sys.executable, "-m", "caw.cli", "serve", "--model", model, "--port", "0", "--name", "tiny",
               "--registry", url, "--threads", "1", "--max-length", "128"]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "CAW_KEY"}
    server = subprocess.Popen(command, env={**environment, "CAW_MASTER_KEY": master}, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        said = []
        for line in server.stderr:
            said.append(line)
            if "listening at " in line:
                break
        base = f"{said[-1].split('listening at ')[1].strip()}/v1"
        with pytest.raises(openai.AuthenticationError):
            ask(base, "any")
        for tenant in tokens:
            assert ask(base, tokens[tenant])
        registry.marking.revoke(ids["globex"])
        with pytest.raises(openai.APIError):  # no key, no text
            ask(base, tokens["globex"])
        server.send_signal(signal.SIGTERM)
        rest = server.stderr.read()
        assert server.wait(60) == 0
    finally:
        server.kill()
    entries = [json.loads(line) for line in export_lines(registry.database)]
    assert verify(export_lines(registry.database), registry.receipts.public_keys()[0]).open == ()
    begun = [entry["receipt"] for entry in entries if entry["kind"] == "begun"]
    assert [(each["tenant"], each["key_id"]) for each in begun] == list(ids.items())
    assert not any(secret in "".join([*said, rest]) for secret in (master, *tokens.values()))
    registry.close()


def ask(base: str, token: str) -> str:
    client = openai.OpenAI(base_url=base, api_key=token, max_retries=0, timeout=60)
    return client.completions.create(model="tiny", prompt="the sky", max_tokens=9).choices[0].text
