"""Gates: what makes a receipt stale and what does not, and that nothing but a whole pass counts as one."""

from __future__ import annotations

import ast
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
# the root is on the path for these imports alone: one of its folders has the name of Triton's package
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT)
    from gates import __main__ as program
    from gates import digest, receipts, running, table

PYTHON = '''"""Adds."""

def add(a, b):
    # the sum
    text = "# no comment"  # a comment

    return a + b
'''
CPP = 'int main() {  // a comment\n\n  /* two\n lines */ return size("// no comment \\" /* */") + \'"\';\n}\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text(PYTHON)
    (tmp_path / "src" / "b.cpp").write_text(CPP)
    return tmp_path


GATE = table.Gate("toy", "adds", ("*.py", "*.cpp"))


def changed(checkout: Path, name: str, old: str, new: str) -> bool:
    """Whether the gate's digest differs after an edit."""
    before, path = running.digest_of(GATE, checkout), checkout / "src" / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return running.digest_of(GATE, checkout) != before


@pytest.mark.parametrize(
    "name, old, new",
    [
        ("a.py", "# the sum", "# the sum of both"),
        ("a.py", "    # the sum\n", ""),
        ("a.py", "  # a comment", ""),
        ("a.py", "\n\n", "\n\n\n"),
        ("a.py", "b):", "b):  "),
        ("b.cpp", "// a comment", '// another: it\'s "odd"'),
        ("b.cpp", "/* two\n lines */", "/**/"),
        ("b.cpp", "\n\n", "\n"),
    ],
)
def test_comments_and_blanks_do_not_count(checkout: Path, name: str, old: str, new: str) -> None:
    assert not changed(checkout, name, old, new)


@pytest.mark.parametrize(
    "name, old, new",
    [
        ("a.py", "a + b", "a - b"),
        ("a.py", "# no comment", "# a comment"),
        ("a.py", "    return", "  return"),
        ("a.py", "return a + b", "# return a + b"),
        ("a.py", '"""Adds."""', '"""Adds # both."""'),
        ("b.cpp", "// no comment", "// a comment"),
        ("b.cpp", "/* */", "/*  */"),
        ("b.cpp", "return", "// return"),
    ],
)
def test_code_counts(checkout: Path, name: str, old: str, new: str) -> None:
    assert changed(checkout, name, old, new)


def test_a_move_does_not_count_and_a_new_file_does(checkout: Path) -> None:
    before = running.digest_of(GATE, checkout)
    (checkout / "elsewhere" / "deep").mkdir(parents=True)
    (checkout / "src" / "a.py").rename(checkout / "elsewhere" / "deep" / "c.py")
    assert running.digest_of(GATE, checkout) == before
    (checkout / ".gitignore").write_text("build\n")
    (checkout / "build").mkdir()
    (checkout / "build" / "made.py").write_text("1\n")
    assert running.digest_of(GATE, checkout) == before, "what git ignores is no input"
    (checkout / "d.py").write_text("1\n")
    assert running.digest_of(GATE, checkout) != before


def test_binary_files_count_as_they_are(checkout: Path) -> None:
    (checkout / "x.py").write_bytes(b"\xff\x00 # 1")
    before = running.digest_of(GATE, checkout)
    (checkout / "x.py").write_bytes(b"\xff\x00 # 2")
    assert running.digest_of(GATE, checkout) != before


def test_a_pattern_without_files_is_an_error(checkout: Path) -> None:
    with pytest.raises(ValueError, match=r"gate toy: expected files for \*.cu, found none; mend gates/table.py"):
        running.digest_of(replace(GATE, inputs=("*.py", "*.cu")), checkout)


def report(folder: Path, cases: str, **counts: int) -> Path:
    numbers = " ".join(f'{name}="{count}"' for name, count in counts.items())
    (folder / "report.xml").write_text(f"<testsuites><testsuite {numbers}>{cases}</testsuite></testsuites>")
    return folder / "report.xml"


def test_only_a_whole_pass_is_one(tmp_path: Path) -> None:
    read = running.read_report
    assert read(report(tmp_path, "", tests=3), 0) == ("passed", "", {"passed": 3, "failed": 0, "skipped": 0})
    assert read(report(tmp_path, "", tests=0), 5)[0] == "failed", "no test, no check"
    wrong = '<testcase name="test_x"><failure/></testcase>'
    assert read(report(tmp_path, wrong, tests=2, failures=1), 1)[:2] == ("failed", "failed: test_x")
    assert read(report(tmp_path, "", tests=2, errors=1), 1)[0] == "failed"
    skipped = '<testcase name="test_x"><skipped message="needs nvcc"/></testcase>'
    assert read(report(tmp_path, skipped, tests=2, skipped=1), 0)[:2] == ("unavailable", "needs nvcc")
    assert read(tmp_path / "none.xml", 0)[0] == "failed", "a run that died left no report"


def run_with(outcome: str, checkout: Path, path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> int:
    monkeypatch.setattr(running, "pytest", lambda gate, root: (outcome, "why", {"passed": 1}))
    return program.run_all((replace(GATE, **changes),), checkout, path)


def test_a_pass_holds_until_the_code_changes(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path_factory.mktemp("receipts") / "receipts.jsonl"
    states = lambda: program.states((GATE,), checkout, path)["toy"]  # noqa: E731
    assert states() == "missing"
    other = receipts.Receipt("abc", "0", "passed", 1.0)
    other.write(path)
    assert run_with("passed", checkout, path, monkeypatch) == 0
    first, second = path.read_text().splitlines()
    assert receipts.read(path)["abc"] == other and json.loads(first)["gate"] == "abc"
    written = json.loads(second)
    assert written["outcome"] == "passed" and written["versions"]["python"] and written["processor"]
    assert states() == "holds"
    changed(checkout, "a.py", "# the sum", "# a sum")
    assert states() == "holds"
    changed(checkout, "a.py", "a + b", "b + a")
    assert states() == "stale"
    path.write_text(f"{first}\n<<<<<<< ours\n")
    assert states() == "missing" and receipts.read(path) == {"abc": other}


@pytest.mark.parametrize("outcome, changes", [("failed", {}), ("unavailable", {"tools": ("no-such-compiler",)})])
def test_what_did_not_pass_is_said_and_is_no_success(
    outcome: str, changes: dict[str, Any], checkout: Path, tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("receipts") / "receipts.jsonl"
    assert run_with("failed", checkout, path, monkeypatch, **changes) == 1
    receipt = receipts.read(path)["toy"]
    assert receipt.outcome == outcome
    assert receipt.reason == ("no no-such-compiler here" if changes else "why")
    assert program.states((GATE,), checkout, path) == {"toy": outcome}
    assert "toy did not pass" in capsys.readouterr().err


def test_continuous_integration_writes_no_receipt(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "pytest", lambda gate, root: ("passed", "", {"passed": 1}))
    before = digest.files(checkout)
    assert program.run_all((GATE,), checkout, None) == 0
    assert digest.files(checkout) == before


def test_a_gate_beyond_the_budget_is_named_and_stays_stale(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("receipts") / "receipts.jsonl"
    monkeypatch.setattr(running, "pytest", lambda gate, root: ("passed", "", {"passed": 1}))
    gates = (GATE, replace(GATE, name="long"))
    assert program.run_all(gates, checkout, path, {"toy": 30.0, "long": 90.0}, budget=1) == 0
    assert receipts.read(path).keys() == {"toy"}
    assert "gate long: not run, it stays stale: 90 s do not fit the budget" in capsys.readouterr().out


def test_with_a_budget_a_missing_tool_is_named_and_a_failure_still_fails(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = replace(GATE, tools=("no-such-compiler",))
    assert program.run_all((lacking,), checkout, None) == 1
    assert program.run_all((lacking,), checkout, None, budget=1000) == 0
    assert "gate toy: not run, it stays stale: no no-such-compiler here" in capsys.readouterr().out
    monkeypatch.setattr(running, "pytest", lambda gate, root: ("failed", "broken", {"failed": 1}))
    assert program.run_all((GATE,), checkout, None, budget=1000) == 1


def test_every_gate_has_inputs_tests_and_every_test_a_gate() -> None:
    """The tests are found by their marks, in the source."""
    every = digest.files(ROOT)
    marked = set()
    for path in every:
        if path.name.startswith("test_") and path.suffix == ".py" and "mark.gate(" in path.read_text():
            calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            named = [c for c in calls if ast.unparse(c.func) == "pytest.mark.gate"]
            for gate in (g for g in table.GATES if g.name in {c.args[0].value for c in named}):
                found = digest.chosen(every, ROOT, gate.inputs)
                assert path in {p for paths in found.values() for p in paths}, f"{path.name} is no input of {gate.name}"
            marked |= {c.args[0].value for c in named}
    names = [gate.name for gate in table.GATES]
    assert len(set(names)) == len(names) and marked == set(names)
    for gate in table.GATES:
        assert running.digest_of(gate, ROOT, every)


def test_a_receipt_belongs_to_a_gate() -> None:
    known = {gate.name for gate in table.GATES}
    assert program.RECEIPTS.exists() and receipts.read(program.RECEIPTS).keys() <= known


def test_unknown_gates_and_odd_outcomes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        program.main(["run", "cudda"])
    assert "got cudda; name one of them" in capsys.readouterr().err
    with pytest.raises(ValueError, match="outcome must be"):
        receipts.Receipt("toy", "0", "fine", 1.0)
    with pytest.raises(ValueError, match="a gate needs"):
        table.Gate("a b", "", ("*",))
