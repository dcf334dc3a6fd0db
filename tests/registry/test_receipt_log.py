"""The log of receipts: durable, once each, one chain for all writers, whatever dies."""

import json
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from registry.conftest import Clock
from registry.samples import begun, closed

from caw.registry import Registry, open_registry
from caw.registry.audit import Verified, export_lines, verify, verify_end
from caw.registry.database import Database
from caw.registry.master_key import MasterKeys

TESTS = Path(__file__).resolve().parents[1]


def verified(registry: Registry) -> Verified:
    return verify(export_lines(registry.database))


def test_what_is_written_is_what_was_given_and_no_text(registry: Registry) -> None:
    registry.receipts.begin(begun("one", choice=3)).close(closed(p_value=None, detected=None, reason="too short"))
    entries = [json.loads(line) for line in export_lines(registry.database)]
    assert [e["kind"] for e in entries] == ["key", "begun", "closed"]
    assert entries[1]["receipt"] == {**vars(begun("one", choice=3))}
    given = closed(p_value=None, detected=None, reason="too short")
    assert entries[2]["receipt"] == {"id": "one", **given.as_dict()}
    assert [e["sequence"] for e in entries] == [1, 2, 3]
    assert [e["previous"] for e in entries] == ["", entries[0]["digest"], entries[1]["digest"]]


def test_an_entry_of_a_kind_is_written_once(registry: Registry) -> None:
    handle = registry.receipts.begin(begun("one"))
    with pytest.raises(ValueError, match="a receipt can be begun only once, got one again"):
        registry.receipts.begin(begun("one"))
    handle.close(closed())
    with pytest.raises(ValueError, match="a receipt can be closed only once, got one again"):
        handle.close(closed(tokens=7))
    found = verified(registry)
    assert (found.entries, found.begun, found.closed) == (3, 1, 1)


def test_numbers_that_json_cannot_hold_are_refused_and_the_log_goes_on(registry: Registry) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        registry.receipts.begin(begun("one", time=float("nan")))
    registry.receipts.begin(begun("one"))
    assert verified(registry).begun == 1


def all_at_once(registry: Registry, ids: list[str]) -> list[str]:
    """Begin all of them while one commit is under way; those that were refused."""
    refused: list[str] = []

    def one(id: str) -> None:
        try:
            registry.receipts.begin(begun(id))
        except ValueError:
            refused.append(id)

    threads = [threading.Thread(target=one, args=(id,)) for id in ids]
    with registry.receipts._turn:
        for thread in threads:
            thread.start()
        while len(registry.receipts._queue) < len(ids):
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    return refused


def test_threads_share_commits_and_make_one_chain(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = []
    real = Database.writing
    monkeypatch.setattr(Database, "writing", lambda self: commits.append(1) or real(self))
    assert all_at_once(registry, [f"text {n}" for n in range(40)]) == [] and len(commits) == 1
    assert verified(registry).begun == 40


def test_one_that_is_refused_does_not_hurt_those_beside_it(registry: Registry) -> None:
    registry.receipts.begin(begun("text 3"))
    ids = [*(f"text {n}" for n in range(9)), "text 5"]
    assert sorted(all_at_once(registry, ids)) == ["text 3", "text 5"]
    assert verified(registry).begun == 9


def test_two_openings_of_one_database_make_one_chain(
    registry: Registry, masters: MasterKeys, clock: Clock, url: str
) -> None:
    beside = open_registry(url, masters, clock=clock)
    for number in range(6):
        (registry, beside)[number % 2].receipts.begin(begun(str(number))).close(closed())
    found = verified(registry)
    assert (found.begun, found.closed, len(found.signers)) == (6, 6, 1)
    beside.close()


def test_a_signer_that_rotates_is_signed_for_by_the_one_before(registry: Registry) -> None:
    registry.receipts.begin(begun("one"))
    new = registry.receipts.rotate_signer()
    registry.receipts.begin(begun("two"))
    found = verified(registry)
    assert registry.receipts.public_keys() == list(found.signers) and found.signers[1] == new


def test_a_database_that_cannot_be_written_fails_closed(registry: Registry, tmp_path: Path) -> None:
    handle = registry.receipts.begin(begun("one"))
    with sqlite3.connect(tmp_path / "keys.db") as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON caw_receipts BEGIN SELECT RAISE(FAIL, 'disk full'); END"
        )
        connection.execute("CREATE TRIGGER facts BEFORE UPDATE ON caw_facts BEGIN SELECT RAISE(FAIL, 'disk full'); END")
    for call in (lambda: registry.receipts.begin(begun("two")), lambda: handle.close(closed())):
        with pytest.raises(OSError, match="cannot be used: disk full"):
            call()
    with pytest.raises(OSError, match="cannot be used: disk full"):
        registry.receipts.check()
    with sqlite3.connect(tmp_path / "keys.db") as connection:
        connection.execute("DROP TRIGGER full")
        connection.execute("DROP TRIGGER facts")
    handle.close(closed())  # what failed wrote nothing
    registry.receipts.check()
    found = verified(registry)
    assert (found.begun, found.closed) == (1, 1)


def test_a_server_that_starts_says_what_was_cut_and_verifies_the_end(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert registry.receipts.resume() == 0
    for number in range(5):
        registry.receipts.begin(begun(str(number))).close(closed())
    registry.receipts.rotate_signer()
    handle = registry.receipts.begin(begun("cut"))
    registry.receipts.begin(begun("cut too"))
    assert registry.receipts.resume() == 2
    monkeypatch.setattr(verify_end, "__defaults__", (3,))  # the end alone, whose signer is announced before it
    handle.close(closed())
    for number in range(3):
        registry.receipts.begin(begun(f"more {number}"))
    assert registry.receipts.resume() == 4
    with sqlite3.connect(tmp_path / "keys.db") as connection:
        last = "WHERE sequence = (SELECT max(sequence) FROM caw_receipts)"
        connection.execute(f"UPDATE caw_receipts SET content = replace(content, 'acme', 'evil') {last}")
    with pytest.raises(ValueError, match="the entry was changed"):
        registry.receipts.resume()
    with sqlite3.connect(tmp_path / "keys.db") as connection:
        connection.execute(f"UPDATE caw_receipts SET content = replace(content, 'evil', 'acme') {last}")
        connection.execute(f"DELETE FROM caw_receipts {last} - 1")
    with pytest.raises(ValueError, match="one was dropped"):
        registry.receipts.resume()


def test_kill_9_loses_no_receipt_of_a_sent_text_and_doubles_none(registry: Registry, url: str) -> None:
    sent: set[str] = set()
    complete: set[str] = set()
    for round in range(2):
        servers = [start_writer(url, uuid.uuid4().hex[:8]) for _ in range(2 if round else 1)]
        for server in servers:
            assert server.stdout is not None
            lines = [server.stdout.readline() for _ in range(9 + round)]
            server.kill()
            rest, _ = server.communicate()
            for line in (*lines, *rest.splitlines(keepends=True)):
                if line.endswith("\n"):
                    (sent if line.startswith("sent ") else complete).add(line.split()[1])
            assert server.returncode == -9
    entries = [json.loads(line) for line in export_lines(registry.database)]
    ids = {kind: [e["receipt"]["id"] for e in entries if e["kind"] == kind] for kind in ("begun", "closed")}
    assert len(sent) >= 12 and sent <= set(ids["begun"]) and complete <= set(ids["closed"])
    assert all(len(set(each)) == len(each) for each in ids.values())
    found = verified(registry)
    assert found.begun == len(ids["begun"]) and set(found.open) == set(ids["begun"]) - set(ids["closed"])
    assert len(found.open) <= 3  # what was under way when a server died, and no more


def start_writer(url: str, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(TESTS / "registry" / "writer.py"), url, name], stdout=subprocess.PIPE, text=True,
        env={"PYTHONPATH": str(TESTS), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
