"""Environments of their own, for packages that this one lacks; this checkout is in them as it is installed here."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def environment(folder: Path, *install: str, behind: bool = True) -> Path:
    """The interpreter of one; skips where pip cannot install. behind: whether it finds this one's packages as well."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-compile", *install]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        *_, last = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no reason given"]
        pytest.skip(f"pip could not install {install[0]}: {last}")
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    lines = [path for path in sys.path if behind and path.endswith(("site-packages", "dist-packages"))]
    for name, finder in list(sys.modules.items()):
        if name.startswith("__editable___caw"):
            shutil.copy(str(finder.__file__), packages)
            lines.append(f"import {name}; {name}.install()")
    (packages / "checkout.pth").write_text("\n".join(lines) + "\n")
    return python
