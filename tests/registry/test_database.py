"""The database: what is refused when it is opened, and what its errors say."""

import sqlite3
import threading
from pathlib import Path

import pytest

from caw.registry import Registry, open_registry
from caw.registry.master_key import MasterKeys


def test_what_is_no_registry_is_refused(masters: MasterKeys, tmp_path: Path) -> None:
    for url, message in (
        ("sqlite://", "got an in-memory database"),
        ("sqlite:///:memory:", "got an in-memory database"),
        ("keys.db", "the registry must be a URL such as"),
        (
            f"sqlite:///{tmp_path}/none.db",
            "must be a registry, found none; create the first key with `caw keys create`",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            open_registry(url, masters)
    assert list(tmp_path.iterdir()) == []  # looking makes no file
    with pytest.raises(OSError, match=r"none\.db"):
        open_registry(f"sqlite:///{tmp_path}/no/none.db", masters, create=True)
    (tmp_path / "text.db").write_text("this is no database at all, " * 99)
    with pytest.raises(OSError, match=r"text\.db cannot be used: file is not a database"):
        open_registry(f"sqlite:///{tmp_path}/text.db", masters, create=True)
    with pytest.raises(ImportError, match="requires the package"):
        open_registry("postgresql+pg8000://user:hunter2@host/db", masters)


def test_tables_of_another_form_are_refused(registry: Registry, masters: MasterKeys, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "keys.db") as connection:
        connection.execute("UPDATE caw_facts SET value = '3' WHERE name = 'schema'")
    with pytest.raises(ValueError, match="format 4, found format 3; with the version that made it, export"):
        open_registry(str(registry.database.engine.url), masters)


def test_passwords_and_values_stay_out_of_messages(masters: MasterKeys) -> None:
    pytest.importorskip("psycopg", reason="needs psycopg; pip install 'caw-watermark[postgres]'")
    with pytest.raises(OSError, match="cannot be used") as caught:
        open_registry("postgresql+psycopg://me:hunter2@127.0.0.1:1/db", masters)
    assert "hunter2" not in str(caught.value) and caught.value.__suppress_context__
    with pytest.raises(ValueError, match="must be a URL") as refused:
        open_registry("me:hunter2@host", masters)
    assert "hunter2" not in str(refused.value)


def test_many_openings_at_once_make_one_registry(masters: MasterKeys, url: str) -> None:
    problems: list[BaseException] = []
    together = threading.Barrier(4)

    def make(number: int) -> None:
        try:
            together.wait()
            opened = open_registry(url, masters, create=True)
            opened.marking.create(f"tenant{number}")
            opened.receipts.check()
            opened.close()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=make, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened = open_registry(url, masters)
    assert problems == [] and len(opened.marking.every()) == 4 and len(opened.receipts.public_keys()) == 1
    opened.close()


def test_readers_do_not_wait_for_a_writer(registry: Registry) -> None:
    """A request is looked up while a receipt is being written."""
    registry.marking.create("acme")
    _, token = registry.api.create("acme")
    found = []
    with registry.database.writing():
        reader = threading.Thread(target=lambda: found.append(registry.directory.tenant_for(token)))
        reader.start()
        reader.join(10)
        assert found and found[0] is not None
