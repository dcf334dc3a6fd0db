"""The registry on a real PostgreSQL: the tests of SQLite again, and a database that is killed and started again."""

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from registry.test_api_keys import test_revoked_and_ended_keys_let_nobody_in as test_api_keys_end
from registry.test_api_keys import (
    test_rotation_keeps_the_rights_and_may_let_both_in_for_a_while as test_api_keys_rotate,
)
from registry.test_database import test_many_openings_at_once_make_one_registry as test_many_openings
from registry.test_directory import test_changes_of_another_process_are_seen as test_changes_are_seen
from registry.test_directory import test_old_and_revoked_keys_are_still_read_the_current_first as test_old_keys_are_read
from registry.test_directory import test_rules_of_a_tenant as test_rules
from registry.test_marking_keys import test_a_revoked_key_never_marks_again as test_revoked_keys
from registry.test_marking_keys import test_master_keys_rotate as test_master_keys
from registry.test_marking_keys import test_rotation_ends_the_old_key_where_the_new_one_begins as test_keys_rotate
from registry.test_receipt_log import test_a_signer_that_rotates_is_signed_for_by_the_one_before as test_signers_rotate
from registry.test_receipt_log import test_an_entry_of_a_kind_is_written_once as test_entries_are_written_once
from registry.test_receipt_log import test_kill_9_loses_no_receipt_of_a_sent_text_and_doubles_none as test_kill_9
from registry.test_receipt_log import test_threads_share_commits_and_make_one_chain as test_threads
from registry.test_receipt_log import test_two_openings_of_one_database_make_one_chain as test_two_openings
from serve.test_siege_receipts import model
from serve.test_siege_receipts import test_keys_rotated_and_revoked_while_requests_run as test_changes_under_load
from serve.test_siege_receipts import test_two_servers_on_one_registry_one_of_them_killed as test_two_servers

from caw.registry import open_registry
from caw.registry.master_key import MasterKeys

pytestmark = pytest.mark.gate("postgres")
__all__ = [
    "model", "test_api_keys_end", "test_api_keys_rotate", "test_changes_are_seen", "test_changes_under_load",
    "test_entries_are_written_once", "test_keys_rotate", "test_kill_9", "test_many_openings", "test_master_keys",
    "test_old_keys_are_read", "test_revoked_keys", "test_rules", "test_signers_rotate", "test_threads",
    "test_two_openings", "test_two_servers",
]  # fmt: skip


class Server:
    """A PostgreSQL of this test run's own, on a socket in a folder that goes with it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="caw-pg-"))
        self.account: list[str] = []
        if os.geteuid() == 0:  # it refuses to run as root
            user = next((n for n in ("postgres", "nobody") if n in {p.pw_name for p in pwd.getpwall()}), None)
            assert user is not None, "expected the account postgres or nobody"
            shutil.chown(self.folder, user)
            self.account = ["setpriv", "--reuid", user, "--regid", str(pwd.getpwnam(user).pw_gid), "--clear-groups"]
        self.data = self.folder / "data"
        self._run("initdb", "-D", str(self.data), "-U", "caw", "-A", "trust", "-E", "UTF8", "--locale=C")
        self.start()

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories='{self.folder}'"
        self._run("pg_ctl", "-D", str(self.data), "-w", "-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self, mode: str) -> None:
        self._run("pg_ctl", "-D", str(self.data), "-w", "-m", mode, "stop")

    def url(self, name: str) -> str:
        return f"postgresql+psycopg://caw@/{name}?host={self.folder}"

    def fresh(self) -> str:
        name = f"t{uuid.uuid4().hex}"
        engine = sa.create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return self.url(name)

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            [*self.account, *command], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.stop("immediate")
    shutil.rmtree(found.folder, ignore_errors=True)


@pytest.fixture
def url(server: Server) -> str:
    return server.fresh()


def test_a_database_that_goes_away_fails_closed_and_comes_back(server: Server, url: str, masters: MasterKeys) -> None:
    from registry.samples import begun, closed

    from caw.registry.audit import export_lines, verify

    registry = open_registry(url, masters, create=True)
    handle = registry.receipts.begin(begun("one"))
    server.stop("immediate")  # as after a power cut
    for call in (
        lambda: registry.receipts.begin(begun("two")),
        lambda: handle.close(closed()),
        registry.receipts.check,
    ):
        with pytest.raises(OSError, match="cannot be used"):
            call()
    server.start()
    handle.close(closed())
    found = verify(export_lines(registry.database))
    assert (found.begun, found.closed) == (1, 1)
    registry.close()
