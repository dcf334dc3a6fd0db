"""Name the tests that mirror the files of the last changes, the ones in most changes first.

    python .ci/changed_tests.py

The changes are the commits since origin/main branched off, or, on main itself, those of the 24 hours before the newest;
files that only moved do not count.
`caw/a/b.py` is mirrored by tests/a/test_b*.py, or else by the tests in tests/a itself or in the folder above; a page by
those in tests/docs; a changed test by itself.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MIRRORS = {
    "caw": "tests", "caw_lab": "tests/lab", "csrc": "tests/csrc", "triton_kernels": "tests/triton_kernels",
    "benchmarks": "tests/benchmark",
}  # fmt: skip


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True).stdout


def changed(root: Path) -> list[str]:
    """The files in every change, once for each."""
    base, head = git(root, "merge-base", "origin/main", "HEAD").strip(), git(root, "rev-parse", "HEAD").strip()
    if base and base != head:
        span = [f"{base}..HEAD"]
    else:
        span = [f"--since={int(git(root, 'log', '-1', '--format=%ct') or 0) - 86400}", "HEAD"]
    listed = git(root, "log", "--no-merges", "-M", "--diff-filter=AMR", "--name-status", "--format=", *span)
    rows = [line.split("\t") for line in listed.splitlines() if line]
    return [names[-1] for status, *names in rows if status != "R100"]


def tests_of(root: Path, name: str) -> list[Path]:
    """The test files that mirror one file."""
    path = Path(name)
    if path.parts[0] == "tests":
        return [root / path] if path.name.startswith("test_") and (root / path).is_file() else []
    if path.suffix == ".md" or path.parts[0] == "docs":
        return sorted((root / "tests" / "docs").glob("test_*.py"))
    if path.parts[0] not in MIRRORS:
        return []
    folder = root.joinpath(MIRRORS[path.parts[0]], *path.parts[1:-1])
    while not folder.is_dir():
        folder = folder.parent
    own = sorted(folder.glob(f"test_{path.stem.removesuffix('_ref')}*.py"))
    return own or ([] if folder == root / "tests" else sorted(folder.glob("test_*.py")))


def tests(root: Path, names: Iterable[str]) -> list[str]:
    """Sorted by how many changes each mirrors; those of pages, which every page counts for, last."""
    counts = Counter(test for name in names for test in tests_of(root, name))
    order = sorted(counts, key=lambda test: (test.parent.name == "docs", -counts[test]))
    return [str(test.relative_to(root)) for test in order]


if __name__ == "__main__":
    print(" ".join(tests(ROOT, changed(ROOT))))
