"""`caw serve`: what it refuses before it loads a model, and a server in a process of its own."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import sqlalchemy as sa
from cli.running import KEY, assert_refused, run
from serve.serving import Process

from caw.registry import Registry, open_registry
from caw.registry.audit import export_lines, verify
from caw.registry.master_key import MasterKeys, new_master_key
from caw.registry.sketches import KEY as KEY_OF_SKETCHES
from caw.registry.tables import signing_keys
from caw.serve.contracts import MarkRules
from caw.serve.settings import ServerSettings

pytestmark = pytest.mark.usefixtures("environment")


def test_what_cannot_be_served_is_refused_before_a_model_is_loaded() -> None:
    for arguments, said in (
        (["--host", "0.0.0.0"], "accepts only local connections"),
        (["--strict"], "strict requires detectable_at"),
        (["--detectable-at", "2"], "detectable_at must be a number in (0, 1)"),
        (["--port", "70000"], "port must be an integer"), (["--batch-size", "0"], "batch must be an integer"),
        (["--watermark", "none"], "marks every response"), (["--proxy", "10.0.0.7"], "accepts only local connections"),
        (["--proxy", "me"], "proxies must be addresses or networks"),
        (["--policy", "fixed", "--theta", "0.5"], "only for policy capacity"),
        (["--registry", "sqlite://"], "a registry stores keys and receipts, got --key or CAW_KEY as well"),
    ):  # fmt: skip
        assert_refused(run("serve", "--model", "no-such-model", *arguments), said)
    for arguments, said in (
        ([], "requires a marking key, got none; set CAW_KEY"),
        (["--registry", "sqlite://", "--receipts", "r"], "got --receipts as well"),
    ):  # fmt: skip
        assert_refused(run("serve", "--model", "no-such-model", *arguments, key=None), said)


def test_options_say_what_is_exempt_and_replace_a_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[MarkRules] = []

    class Refusing(ServerSettings):  # the command's options come from the fields of its base
        def __init__(self, **said: Any) -> None:
            given.append(said["rules"])
            raise ValueError("enough")

    monkeypatch.setattr("caw.serve.settings.ServerSettings", Refusing)
    own = tmp_path / "own.yaml"
    own.write_text("options: {exempt_json: true}")
    every = "--exempt-json --exempt-tools --exempt-thinking --exempt-below 30 --strict --detectable-at 0.01"
    for options in (
        "",
        "--exempt-tools",
        every,
        "--profile eu",
        "--detectable-at 1e-4 --profile eu",
        f"--profile {own}",
    ):
        assert_refused(run("serve", "--model", "no-such-model", *options.split()), "enough")
    eu = MarkRules(1e-3, True, 200, exempt_json=True, exempt_tools=True, exempt_thinking=True)
    assert given == [
        MarkRules(), MarkRules(exempt_tools=True),
        dataclasses.replace(eu, detectable_at=0.01, strict_from=0, exempt_below=30), eu,
        dataclasses.replace(eu, detectable_at=1e-4), MarkRules(exempt_json=True),
    ]  # fmt: skip
    for text, said in (
        ("options: {strickt: true}", "'strickt' is no option of a profile"), ("options: [", "is not valid YAML"),
        ("options: {key: 1}", "'key' is no option of a profile"), ("strict: true", "must have options"),
        ("{options: {}, requires: [luck]}", "may require registry and public"),
    ):  # fmt: skip
        own.write_text(text)
        assert_refused(run("serve", "--model", "no-such-model", "--profile", str(own)), said)
    assert_refused(run("serve", "--model", "no-such-model", "--profile", "us"), "profile must be eu, or a .yaml file")


def test_a_profile_requires_a_registry_whose_keys_are_public(tmp_path: Path) -> None:
    serve, url = ("serve", "--model", "no-such-model", "--profile", "eu"), f"sqlite:///{tmp_path / 'keys.db'}"
    assert_refused(run(*serve), "profile eu requires a registry")
    master = {"CAW_MASTER_KEY": new_master_key()}
    registry = open_registry(url, MasterKeys.read(master), create=True)
    registry.marking.create("acme", public=True)
    public = run(*serve, "--registry", url, key=None, environment=master)
    assert "no-such-model" in public.stderr
    registry.marking.create("globex")
    secret = run(*serve, "--registry", url, key=None, environment=master)
    assert_refused(secret, "profile eu requires keys that anyone may test for, got ")
    registry.close()


@contextlib.contextmanager
def served(model: str, secrets: dict[str, str], *options: str) -> Iterator[tuple[str, list[str]]]:
    """A server that ends well: its address, and what it said, the end of it afterwards."""
    given = ("--model", model, "--name", "tiny", "--threads", "1", "--max-length", "128", "--detectable-at", "0.05")
    with Process(*given, *options, **secrets) as server:
        yield f"{server.url}/v1", server.said
        server.stop()


@pytest.mark.slow(seconds=12)
def test_a_server_in_a_process_of_its_own(model: str, tmp_path: Path) -> None:
    receipts = tmp_path / "receipts.jsonl"
    with served(model, {"CAW_KEY": KEY}, "--receipts", str(receipts)) as (base, said):
        text = ask(base, "any")
    assert text
    begun, closed = (json.loads(line) for line in receipts.read_text().splitlines())
    assert (begun["event"], closed["event"], begun["id"]) == ("begun", "closed", closed["id"])
    assert begun["tenant"] == "default" and len(begun["key_id"]) == 8 and closed["ending"] == "complete"
    assert KEY not in "".join([*said, receipts.read_text()]) and "Traceback" not in "".join(said)
    assert receipts.stat().st_mode & 0o077 == 0
    again = run("detect", "--tokenizer", model, "--text", text, "--receipt", str(receipts), "--json")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["p_value"] == closed["p_value"] == closed["tested"]["p_value"]


@pytest.mark.slow(seconds=12)
def test_a_server_with_a_registry(model: str, tmp_path: Path) -> None:
    master, url = new_master_key(), f"sqlite:///{tmp_path / 'keys.db'}"
    registry = open_registry(url, MasterKeys.read({"CAW_MASTER_KEY": master}), create=True)
    tokens, ids = {}, {}
    for tenant in ("acme", "globex"):
        ids[tenant] = registry.marking.create(tenant).id
        _, tokens[tenant] = registry.api.create(tenant)
    with served(model, {"CAW_MASTER_KEY": master}, "--registry", url) as (base, said):
        with pytest.raises(openai.AuthenticationError):
            ask(base, "any")
        texts = [ask(base, token) for token in tokens.values()]
        registry.marking.revoke(ids["globex"])
        with pytest.raises(openai.APIError):  # no key, no text
            ask(base, tokens["globex"])
    entries = [json.loads(line) for line in export_lines(registry.database)]
    assert verify(export_lines(registry.database), registry.receipts.public_keys()[0]).open == ()
    begun = [entry["receipt"] for entry in entries if entry["kind"] == "begun"]
    assert [(each["tenant"], each["key_id"]) for each in begun] == list(ids.items())
    with registry.database.reading() as connection:  # the texts are too short for sketches, which are on
        assert KEY_OF_SKETCHES in connection.execute(sa.select(signing_keys.c.id)).scalars().all()
    assert not any(secret in "".join(said) for secret in (master, *tokens.values()))
    repeated(model, tmp_path, registry, master, texts, [each["receipt"] for each in entries])
    registry.close()


def repeated(model: str, folder: Path, registry: Registry, master: str, texts: list[str], receipts: Any) -> None:
    """Each tenant's text is tested again as its receipt says, under the key that only the registry knows."""
    lines, log, url = folder / "texts.jsonl", folder / "log.jsonl", str(registry.database.engine.url)
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, "another"]))
    log.write_text("".join(f"{line}\n" for line in export_lines(registry.database)))
    given = ["detect", "--tokenizer", model, "-i", str(lines), "--registry", url, "--receipt", str(log), "--json"]
    result = run(*given, key=None, environment={"CAW_MASTER_KEY": master})
    assert result.exit_code == 1 and "line 3: no receipt in " in result.stderr
    found = {line["key_id"]: line["p_value"] for line in map(json.loads, result.stdout.splitlines())}
    assert found == {each["tested"]["key_id"]: each["p_value"] for each in receipts if each.get("tested")}
    assert len(found) == 2
    other = run(*given[:-1], "--tenant", "acme", key=None, environment={"CAW_MASTER_KEY": master})
    assert other.exit_code == 2 and "which is not in the registry" in other.stderr


def ask(base: str, token: str) -> str:
    client = openai.OpenAI(base_url=base, api_key=token, max_retries=0, timeout=60)
    return client.completions.create(model="tiny", prompt="the sky", max_tokens=9).choices[0].text
