"""`caw evaluate run`: its files and messages, killed, and in two processes at once."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab.evaluation.small_run import content_of
from lab.evaluation.tiny_run import command, invoke, texts
from typer.testing import CliRunner

from caw.cli import app
from caw_lab.evaluation.config_file import config_of
from caw_lab.evaluation.packed_files import read_lines
from caw_lab.evaluation.store import Store


def test_a_run_does_not_replace_what_it_reads(made: dict[str, Any], tmp_path: Path) -> None:
    """Questions by the name of a result: the run would end by writing over them."""
    questions, folder = tmp_path / "mine.jsonl", tmp_path / "run"
    questions.write_bytes(Path(made["tasks"]["mine"]["path"]).read_bytes())
    folder.mkdir()
    (folder / "scores.jsonl").hardlink_to(questions)
    config = {**made, "tasks": {"mine": {**made["tasks"]["mine"], "path": str(questions)}}, "output": str(folder)}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    result = CliRunner().invoke(app, ["evaluate", "run", "--config", str(tmp_path / "config.yaml"), "--limit", "1"])
    assert result.exit_code == 2 and "must be another file than tasks.mine" in result.stderr
    assert os.listdir(folder) == ["scores.jsonl"]


@pytest.mark.slow(seconds=20)
def test_two_at_once_as_torchrun_starts_them_and_one_killed(
    made: dict[str, Any], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL of the first after its first lines, then it again to the end: nothing is lost or doubled, and finished
    lines stay as they were."""
    out, ranks = tmp_path / "out", [{"RANK": str(rank), "WORLD_SIZE": "2"} for rank in (0, 1)]
    given = command(made, tmp_path, "--only", "*.none", "--only", "*.hard.*")
    first, second = (subprocess.Popen(given, env={**os.environ, **rank}, stderr=subprocess.DEVNULL) for rank in ranks)
    deadline = time.monotonic() + 300
    while len(lines_of_first(out)) < 4 and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    assert (first.wait(), second.wait(timeout=500)) == (-signal.SIGKILL, 0)
    kept = lines_of_first(out)
    assert 4 <= len(kept) < 13
    for name, value in ranks[0].items():
        monkeypatch.setenv(name, value)
    last = invoke(*given[5:])
    assert last.exit_code == 0, last.output
    assert lines_of_first(out).items() >= kept.items()
    assert texts(out) == {name: found for name, found in texts(whole).items() if "none" in name or "hard" in name}
    [compared] = Store(out).results["comparisons"]
    assert compared in Store(whole).results["comparisons"]


def lines_of_first(folder: Path) -> dict[tuple[str, str], str]:
    return {
        (cell.name, line["id"]): line["text"]
        for cell in Store(folder).cells()
        for line in read_lines(cell.folder / "generations.0.jsonl", missing_ok=True)
    }


def test_command_line(made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAW_KEY", "correct horse battery staple")
    config = command(made, tmp_path)[6]
    result = invoke(
        "-c", config, "--limit", "2", "--only", "*.none", "--only", "*.soft.0", "--publish", str(tmp_path / "p")
    )
    assert result.exit_code == 0, result.output
    assert "4 new texts" in result.output and "published 4 answers" in result.output
    again = invoke("-c", config, "--scores-only", "--only", "*.soft.0")
    assert again.exit_code == 0 and "0 new texts" in again.output
    store = Store(tmp_path / "out")
    record = store.run(store.cell("tiny.mine.kgw.soft.0").read()[0].run)
    assert (record["seed"], record["keys_from"]) == (0, "CAW_KEY")
    assert (store.path / "configs" / f"{record['config']}.yaml").read_text() == Path(config).read_text()
    everything = content_of(tmp_path)
    number = str(config_of(made).key(0))
    assert "correct horse" not in everything and number not in everything


def test_bad_usage(made: dict[str, Any], tmp_path: Path) -> None:
    for options, message in (
        (["--rank", "2", "--world-size", "2"], "rank must be in [0, world size)"),
        (["--only", "nothing"], "--only must match a cell"),
        (["-o", "FILE"], "is a file"),
    ):
        config = command(made, tmp_path)[6]
        (tmp_path / "file").write_text("")
        result = invoke("-c", config, *(str(tmp_path / "file") if part == "FILE" else part for part in options))
        assert result.exit_code == 2 and message in result.output
