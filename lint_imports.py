"""Check that imports point one way: the contract stands in pyproject.toml under `importlinter`.

    python lint_imports.py

import-linter reads a package from one folder, and the kernels are installed as `caw.triton_kernels` but lie beside the
package. So it is shown a copy of the sources as they are installed. Imports inside functions count; those for type
checkers alone do not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def copy_sources(root: Path, target: Path) -> None:
    """The Python sources as they are installed, and the contract."""
    ignored = shutil.ignore_patterns("*.so", "*.safetensors", "*.json", "*.txt", "__pycache__")
    shutil.copytree(root / "caw", target / "caw", ignore=ignored)
    shutil.copytree(root / "triton_kernels", target / "caw" / "triton_kernels", ignore=ignored)
    shutil.copy(root / "pyproject.toml", target)


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """What import-linter says of sources that `copy_sources` made."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run([*command, "--no-cache"], cwd=folder, env=environment, capture_output=True, text=True)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        copy_sources(ROOT, Path(folder))
        found = check(Path(folder))
    if found.returncode:
        _, heading, broken = found.stdout.partition("Broken contracts")
        print((heading + broken or found.stdout) + found.stderr, file=sys.stderr)
    return found.returncode


if __name__ == "__main__":
    sys.exit(main())
