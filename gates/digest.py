"""One digest of the contents of many files: where they lie, comments and blank lines do not count."""

from __future__ import annotations

import fnmatch
import hashlib
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

C_LIKE = {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".inc"}
# strings come first, kept whole: they may hold what looks like a comment
STRINGS = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
C_PARTS = re.compile(rf'(R"([^()\\\s]{{0,16}})\(.*?\)\2"|{STRINGS})|//[^\n]*|/\*.*?\*/', re.DOTALL)
PYTHON_PARTS = re.compile(rf'("""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|{STRINGS})|#[^\n]*', re.DOTALL)


def files(root: Path) -> list[Path]:
    """The checkout's files, new ones too, without what git ignores."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"gates need git and a checkout to know their files, got {done.stderr.strip()}; clone it")
    return sorted({root / name for name in done.stdout.split("\0") if name and (root / name).is_file()})


def chosen(every: Iterable[Path], root: Path, patterns: Iterable[str]) -> dict[str, list[Path]]:
    """The files of each pattern."""
    names = {path.relative_to(root).as_posix(): path for path in every}
    return {pattern: [names[n] for n in names if fnmatch.fnmatchcase(n, pattern)] for pattern in patterns}


def digest(paths: Iterable[Path]) -> str:
    """SHA-256 over the set of the files' stripped contents."""
    contents = {hashlib.sha256(stripped(path)).hexdigest() for path in paths}
    return hashlib.sha256("\n".join(sorted(contents)).encode()).hexdigest()


def stripped(path: Path) -> bytes:
    """What counts of a file: text loses its comments (Python and C++), blank lines and blanks at the ends of lines."""
    raw = path.read_bytes()
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return raw
    if path.suffix == ".py":
        text = PYTHON_PARTS.sub(lambda found: found[1] or "", text)
    elif path.suffix in C_LIKE:
        text = C_PARTS.sub(lambda found: found[1] or " ", text)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip()).encode()
