"""`caw serve` under Ray Serve: what its file may say; with a real Ray, two replicas on one registry, one killed."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from environments import environment
from registry.test_postgres import Server as Postgres
from serve.besieged import NAME, Keep
from serve.serving import until
from serve.test_siege_receipts import Clients, check_heard, check_texts, receipts_of
from tiny import save_tiny

from caw.integrations import ray_serve
from caw.integrations.ray_serve import Replicas, read_service
from caw.serve import ray as short

ROOT = Path(__file__).resolve().parents[2]
RAY = "ray[serve,data]==2.60.0"
INTERPRETER = "CAW_RAY_PYTHON"  # of an environment that is kept, for another run
REPLICA = re.compile(r"^ray::ServeReplica:caw:caw")
WHOLE = {"model": "m", "registry": "sqlite:///keys.db"}


def test_the_name_for_command_lines() -> None:
    assert short.app is ray_serve.app


def written(folder: Path, said: Any) -> Path:
    path = folder / "service.json"
    path.write_text(json.dumps(said))
    return path


def test_files_that_are_refused(tmp_path: Path) -> None:
    for said, message in (
        ([], "expected a JSON object"),
        ({"model": "m"}, "the file must have registry, found none"),
        ({**WHOLE, "modle": 1}, "the file may have model, registry, .*, got 'modle'"),
        ({**WHOLE, "registry": ""}, "registry must be given as text, got ''"),
        ({**WHOLE, "settings": {"port": 1}}, "settings must leave port to Ray"),
        ({**WHOLE, "settings": {"rules": {}}}, "settings must leave rules to .* its own field"),
        ({**WHOLE, "settings": {"bach": 1}}, "settings may have name, .*, got 'bach'"),
        ({**WHOLE, "settings": {"batch": 0}}, r"batch must be an integer in \[1, 65536\], got 0"),
        ({**WHOLE, "rules": {"strict": True}}, "strict requires detectable_at"),
        ({**WHOLE, "replicas": {"least": 2}}, r"most must be an integer in \[2, "),
        ({**WHOLE, "replicas": {"gpus": -1}}, "gpus must be a number"),
        ({**WHOLE, "watermark": {"name": "x"}}, "watermark must have a name of recommended, .*, got 'x'"),
        ({**WHOLE, "policy": {"name": "x"}}, "policy must have a name of .*, got 'x'"),
        ({**WHOLE, "threads": 0}, "threads must be an integer"),
    ):
        path = written(tmp_path, said)
        with pytest.raises(ValueError, match=message) as caught:
            read_service(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_where_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ray_serve.VARIABLE, raising=False)
    for arguments, message in (
        ({}, "expected config=FILE or CAW_RAY_SERVE_CONFIG, got neither"),
        ({"port": "1"}, "expected config=FILE, got 'port'"),
        ({"config": str(tmp_path / "none.json")}, "found none"),
    ):
        with pytest.raises(ValueError, match=message):
            ray_serve.app(arguments)


def test_the_file_of_the_page_and_the_service_that_it_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sqlalchemy")
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    said = json.loads(page.split("```json\n")[1].split("```")[0])
    keep = Keep.build(f"sqlite:///{tmp_path / 'keys.db'}")
    monkeypatch.setenv("CAW_MASTER_KEY", keep.master)
    read = read_service(written(tmp_path, said))
    assert read.replicas == Replicas(least=2, most=8, requests=8, gpus=1) and "postgresql" not in repr(read)
    own = {**said, "model": str(save_tiny(tmp_path / "model")), "registry": keep.url, "watermark": {"name": "kgw"}}
    found = read_service(written(tmp_path, own))
    one, other = found.service(), found.service()
    assert one.settings.name == said["settings"]["name"] and not one.settings.local
    about = ("acme",)
    part = one.continuations.give(_part(), about)
    assert other.continuations.read(part, about).tokens == (1, 2)


def _part() -> Any:
    from caw.serve.continuing import TextSoFar

    return TextSoFar((1, 2), 0, math.inf, None, False, "digest", 3, 7, 0, "receipt", int(time.time()) + 60)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with Ray, and behind it this one's packages and this checkout."""
    if kept := os.environ.get(INTERPRETER):
        return Path(kept)
    return environment(tmp_path_factory.mktemp("environment"), RAY)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    found = Postgres()
    yield found
    found.stop("immediate")


class Cluster:
    """A Ray with replicas; a server, as the clients of the siege see it."""

    def __init__(self, python: Path, model: Path, keep: Keep, folder: Path) -> None:
        self.keep, self.said, self.port = keep, list[str](), 8000  # `serve run` knows no other
        said = {
            "model": str(model), "registry": keep.url, "dtype": "float32", "threads": 1, "policy": {"name": "fixed"},
            "settings": {"name": NAME, "batch": 8, "max_length": 512}, "replicas": {"least": 2, "most": 2, "cpus": 1},
        }  # fmt: skip
        config = f"config={written(folder, said)}"
        # as the page says, `serve run`, by this interpreter; the replicas are one processor each, of two at least
        command = [str(python), "-m", "ray.serve.scripts", "run", "--name", "caw", "caw.serve.ray:app", config]
        own = {"CAW_MASTER_KEY": keep.master, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        own |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        own |= {"PYTHONUNBUFFERED": "1"}
        inherited = {name: value for name, value in os.environ.items() if name not in ("CAW_KEY", "PYTHONPATH")}
        self.process = subprocess.Popen(
            command, cwd=folder, env={**inherited, **own}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.listening = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if "is ready at" in line:
                self.listening.set()

    def __enter__(self) -> Cluster:
        assert self.listening.wait(300), "".join(self.said)[-6000:]
        return self

    def __exit__(self, *error: object) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(180)
        finally:
            self.process.kill()

    def replicas(self) -> dict[int, float]:
        """Seconds of processor time of each replica, by its process."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if REPLICA.match((folder / "cmdline").read_text()) and self._is_ours(int(folder.name)):
                    times = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                    found[int(folder.name)] = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
            except OSError:
                continue
        return found

    def _is_ours(self, process: int) -> bool:
        while process > 1:
            if process == self.process.pid:
                return True
            process = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
        return False


@pytest.mark.gate("ray")
@pytest.mark.timeout(1800)
def test_two_replicas_one_of_them_killed_in_mid_stream(python: Path, postgres: Postgres, tmp_path: Path) -> None:
    keep = Keep.build(postgres.fresh())
    with Cluster(python, save_tiny(tmp_path / "model"), keep, tmp_path) as cluster:
        before = cluster.replicas()
        assert len(before) == 2, "".join(cluster.said)[-6000:]
        clients: Any = Clients(cluster)  # type: ignore[arg-type]
        until(lambda: sum(bool(one.receipt) for one in clients.heard) >= 60, 300)
        spent = {process: seconds - before[process] for process, seconds in cluster.replicas().items()}
        print(f"processor time of the replicas: {spent}")
        assert min(spent.values()) > 0.2 * sum(spent.values())
        until(lambda: sum(bool(one.id) and not one.receipt for one in clients.heard) >= 3, 300)
        gone = max(spent)
        os.kill(gone, signal.SIGKILL)
        so_far = sum(bool(one.receipt) for one in clients.heard)
        until(lambda: sum(bool(one.receipt) for one in clients.heard) >= so_far + 60, 300)
        until(lambda: len(cluster.replicas()) == 2, 300)
        heard = clients.end()
        assert gone not in cluster.replicas()
        _, closed = receipts_of(keep)
    begun, closed = receipts_of(keep)
    cut_off = [one for one in heard if one.id and not one.receipt]
    complete = check_heard(keep, heard)
    print(f"{len(heard)} requests, {complete} complete, {len(cut_off)} cut off; {len(begun)} receipts, "
          f"{len(begun) - len(closed)} of them open; answers {sorted({one.status for one in heard})}")  # fmt: skip
    assert complete >= 120 and cut_off and 0 < len(begun) - len(closed) <= 16
    check_texts(keep, heard)


@pytest.mark.gate("ray")
@pytest.mark.timeout(900)
def test_a_real_ray_writes_a_data_set(python: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-rs", "tests/test_ray.py", "--all-cases", "-k", "two_actors"]
    command = [str(python), "-m", "pytest", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout[-4000:]
