"""Runs the tests of one gate and says how it went."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from gates import receipts
from gates.digest import chosen, digest, files
from gates.receipts import FAILED, PASSED, UNAVAILABLE, Receipt
from gates.table import Gate


def digest_of(gate: Gate, root: Path, every: list[Path] | None = None) -> str:
    """Of the gate's inputs as they are now."""
    found = chosen(files(root) if every is None else every, root, gate.inputs)
    empty = [pattern for pattern, paths in found.items() if not paths]
    if empty:
        raise ValueError(f"gate {gate.name}: expected files for {', '.join(empty)}, found none; mend gates/table.py")
    return digest({path for paths in found.values() for path in paths})


def run(gate: Gate, root: Path) -> Receipt:
    """The receipt of a run now; its digest is taken before the run, so that an edit meanwhile makes it stale."""
    before = digest_of(gate, root)
    started = time.monotonic()
    missing = [tool for tool in gate.tools if shutil.which(tool) is None]
    if missing:
        outcome, reason, counts = UNAVAILABLE, f"no {' and no '.join(missing)} here", dict[str, int]()
    else:
        outcome, reason, counts = pytest(gate, root)
    model, flags = receipts.processor()
    seconds = time.monotonic() - started
    return Receipt(gate.name, before, outcome, seconds, reason, counts, model, flags, receipts.versions(gate.tools))


def pytest(gate: Gate, root: Path) -> tuple[str, str, dict[str, int]]:
    """(outcome, reason, counts of its tests); output goes through, the report is read."""
    workers = ["-n", "auto", "--dist", "loadgroup"] if gate.parallel else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # the program beside this interpreter, not `-m pytest`: that would put the checkout's root on the path
        program = [str(Path(sys.executable).with_name("pytest")), "--gate", gate.name, "--timeout", "3600"]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        command = [*program, *workers, "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        status = subprocess.run(command, cwd=root, env=environment).returncode
        return read_report(report, status)


def read_report(report: Path, status: int) -> tuple[str, str, dict[str, int]]:
    """A skipped test did not check: the gate is unavailable, not passed. Nor is a gate without tests."""
    if not report.exists():
        return FAILED, f"pytest ended with status {status} and no report", {}
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    wrong = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    counts = {"passed": total - skipped - wrong, "failed": wrong, "skipped": skipped}
    if status or wrong or not total:
        names = [case.get("name", "") for case in suite.iter("testcase") if case.find("failure") is not None]
        return FAILED, f"failed: {', '.join(names)}" if names else f"pytest ended with status {status}", counts
    if skipped:
        reasons = {found.get("message", "") for found in suite.iter("skipped")}
        return UNAVAILABLE, "; ".join(sorted(reasons)), counts
    return PASSED, "", counts
