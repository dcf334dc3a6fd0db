"""Continuous integration finds the tests that mirror what changed."""

import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / ".ci" / "changed_tests.py"
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="needs a checkout")


def test_a_file_is_mirrored() -> None:
    for name, expected in (
        ("caw/watermarks/exp.py", ["tests/watermarks/test_exp.py"]),
        ("triton_kernels/topk_softmax_ref.py", ["tests/triton_kernels/test_topk_softmax.py"]),
        ("caw/entrance.py", ["tests/test_entrance.py", "tests/test_entrance_penalties.py"]),
        ("caw_lab/evaluation/metrics/no_such.py", ["tests/lab/evaluation/metrics/test_scoring.py"]),
        ("tests/test_ladder.py", ["tests/test_ladder.py"]),
        ("csrc/cpu/kernels.h", ["tests/csrc/test_kernels.py"]),
        ("benchmarks/stages.py", ["tests/benchmark/test_stages.py"]),
        ("tests/tiny.py", []),
        ("caw/no_such.py", []),
        ("README.md", ["tests/docs/test_readme.py"]),
    ):
        tests = {str(path.relative_to(ROOT)) for path in runpy.run_path(str(SCRIPT))["tests_of"](ROOT, name)}
        assert set(expected) <= tests and bool(expected) == bool(tests)


def test_changes_are_those_of_the_branch_or_of_a_day(tmp_path: Path) -> None:
    def git(*arguments: str, hour: int = 0) -> None:
        day, hour = divmod(hour, 24)
        environment = {"GIT_COMMITTER_DATE": f"2026-01-0{day + 1}T{hour:02}:00:00Z"}
        person = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *person, *arguments], cwd=tmp_path, env=environment, check=True, capture_output=True)

    def commit(name: str, hour: int) -> None:
        (tmp_path / name).write_text(f"{name} {hour}\n")
        git("add", ".")
        git("commit", "-q", "-m", name, hour=hour)

    changed = runpy.run_path(str(SCRIPT))["changed"]
    git("init", "-q", "-b", "main")
    for name, hour in (("old", 0), ("yesterday", 30), ("today", 50), ("today", 52)):
        commit(name, hour)
    assert changed(tmp_path) == ["today", "today", "yesterday"]
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    assert changed(tmp_path) == ["today", "today", "yesterday"]
    git("checkout", "-q", "-b", "topic")
    git("mv", "old", "moved")
    commit("new", 53)
    (tmp_path / "moved").write_text("old 0\n" * 9)
    git("commit", "-q", "-a", "-m", "longer", hour=54)
    git("mv", "moved", "again")
    (tmp_path / "again").write_text("old 0\n" * 8)
    git("commit", "-q", "-a", "-m", "moved and changed", hour=54)
    assert changed(tmp_path) == ["again", "moved", "new"]
