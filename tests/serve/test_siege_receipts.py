"""Two servers on one registry, one killed, and keys changed while they work: what they said has its receipts, once."""

import http.client
import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from serve.besieged import NAME, Besieged, Keep
from serve.serving import alone
from tiny import save_tiny

from caw.detectable.receipts import text_digest
from caw.registry.audit import export_lines, verify
from caw.serve.contracts import MarkKey, Tenant

pytestmark = pytest.mark.gate("siege")
CLIENTS, PROMPTS = 12, ("the sky", "a model", "why")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'keys.db'}"


@dataclass
class Heard:
    """What a client has of one request. id: of its answer, "" while none came. receipt: of its text, once complete."""

    prompt: str
    tokens: int
    tenant: str = "acme"
    id: str = ""
    text: str = ""
    receipt: str = ""
    status: int = 0


def ask(server: Besieged, heard: Heard, *, stream: bool) -> None:
    """One request; returns when it is answered, or when the server is gone."""
    asked = {"model": NAME, "prompt": heard.prompt, "max_tokens": heard.tokens, "temperature": 0, "stream": stream}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    token = server.keep.tokens[heard.tenant]
    sent = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    try:
        connection.request("POST", "/v1/completions", json.dumps(asked), sent)
        answer = connection.getresponse()
        heard.status = answer.status
        if answer.status == 200 and stream:
            while line := answer.readline():
                if line.startswith(b"data: {"):
                    take(heard, json.loads(line[6:]))
        elif answer.status == 200:
            take(heard, json.loads(answer.read()))
    except (OSError, http.client.HTTPException, ValueError):  # killed in the middle
        return
    finally:
        connection.close()


def take(heard: Heard, said: dict[str, Any]) -> None:
    assert "error" not in said, said
    heard.id, [choice] = said["id"], said["choices"]
    heard.text += choice["text"]
    if choice["finish_reason"]:
        [heard.receipt] = said["caw"]["receipts"]


class Clients:
    """Clients that ask again and again until they are told to stop, or their server is gone."""

    def __init__(self, server: Besieged, tenants: tuple[str, ...] = ("acme", "other"), seed: int = 0) -> None:
        self.heard: list[Heard] = []
        self.stopped = threading.Event()
        self.threads = [
            threading.Thread(target=self._work, args=(server, tenants[number % len(tenants)], seed + number))
            for number in range(CLIENTS)
        ]
        for thread in self.threads:
            thread.start()

    def _work(self, server: Besieged, tenant: str, seed: int) -> None:
        rng = random.Random(seed)
        while not self.stopped.is_set() and server.process.poll() is None:
            heard = Heard(rng.choice(PROMPTS), rng.choice([3, 30, 150]), tenant)
            self.heard.append(heard)
            ask(server, heard, stream=rng.random() < 0.5)

    def end(self) -> list[Heard]:
        self.stopped.set()
        for thread in self.threads:
            thread.join()
        return self.heard


def receipts_of(keep: Keep) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Those begun and those closed, by id; the chain is whole, and nothing stands in it twice."""
    with keep.opened() as registry:
        lines = list(export_lines(registry.database))
    verify(lines)
    entries = [json.loads(line) for line in lines]
    found = []
    for kind in ("begun", "closed"):
        told = [entry["receipt"] for entry in entries if entry["kind"] == kind]
        assert max(Counter(one["id"] for one in told).values(), default=1) == 1
        found.append({one["id"]: one for one in told})
    return found[0], found[1]


def check_heard(keep: Keep, heard: list[Heard]) -> int:
    """Of every text of which a byte left, the receipt had begun; of every whole one it is closed. Their number."""
    begun, closed = receipts_of(keep)
    requests = Counter(one["request"] for one in begun.values())
    assert set(requests.values()) <= {1}
    complete = 0
    for one in heard:
        if one.id:
            assert requests[one.id] == 1
        if one.receipt:
            assert closed[one.receipt]["digest"] == text_digest(one.text)
            assert closed[one.receipt]["ending"] == "complete" and begun[one.receipt]["tenant"] == one.tenant
            complete += 1
    return complete


def test_two_servers_on_one_registry_one_of_them_killed(model: Path, url: str) -> None:
    keep = Keep.build(url)
    with Besieged(model, keep) as first, Besieged(model, keep) as second:
        both = Clients(first), Clients(second, seed=50)
        while min(sum(bool(one.receipt) for one in clients.heard) for clients in both) < 15:
            time.sleep(0.01)
        first.process.kill()
        heard = both[0].end()
        so_far = len(both[1].heard)
        while len(both[1].heard) < so_far + 30:
            time.sleep(0.01)
        heard += both[1].end()
        second.stop()
    assert check_heard(keep, heard) >= 50
    assert all(one.status == 200 and one.receipt for one in both[1].heard)
    check_texts(keep, heard)


def check_texts(keep: Keep, heard: list[Heard]) -> set[str]:
    """Every whole text is marked under the key that its receipt names; those keys."""
    begun, _ = receipts_of(keep)
    with keep.opened() as registry:
        keys = {
            key.id: key.key
            for tenant in ("acme", "other")
            for key in registry.directory.detection_keys(Tenant(tenant, MarkKey("", 0)))  # its API key may be revoked
        }
    known: dict[tuple[str, str], str] = {}
    for one in heard:
        if one.receipt:
            key_id = begun[one.receipt]["key_id"]
            if (one.prompt, key_id) not in known:
                known[one.prompt, key_id] = alone(one.prompt, key=keys[key_id], max_new_tokens=150)[0]
            assert one.text and known[one.prompt, key_id].startswith(one.text.rstrip("\ufffd"))
    return {key_id for _, key_id in known}


def test_keys_rotated_and_revoked_while_requests_run(model: Path, url: str) -> None:
    keep = Keep.build(url)
    with Besieged(model, keep) as first, Besieged(model, keep) as second, keep.opened() as registry:
        servers = first, second
        running = [Clients(server, seed=70 * number) for number, server in enumerate(servers)]
        used = []
        for _ in range(4):
            time.sleep(0.6)
            old, new = registry.marking.rotate("acme")
            registry.marking.revoke(old.id)
            used.append(new.id)
            for server in servers:
                late = Heard("why", 5)
                ask(server, late, stream=False)
                assert receipts_of(keep)[0][late.receipt]["key_id"] == new.id
                running[0].heard.append(late)
        [api] = registry.api.every("other")
        ahead = len(running[0].heard) + len(running[1].heard)
        registry.api.revoke(api.id)
        for server in servers:
            late = Heard("why", 5, "other")
            ask(server, late, stream=False)
            assert late.status == 401
        while len(running[0].heard) + len(running[1].heard) < ahead + 40:
            time.sleep(0.01)
        heard = [one for clients in running for one in clients.end()]
        for server in servers:
            server.stop()
    assert {one.status for one in heard if one.tenant == "acme"} == {200}
    assert {one.status for one in heard if one.tenant == "other"} == {200, 401}
    check_heard(keep, heard)
    assert set(used) <= check_texts(keep, heard)
