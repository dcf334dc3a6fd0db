"""Where the CUDA toolkit is, read by setup.py through runpy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def cuda_home(root: Path = Path("/usr/local"), told: Sequence[str] = ("CUDA_HOME", "CUDA_PATH")) -> str | None:
    """Folder of the first toolkit with a library to link: as these variables say, the default, the newest other one.

    torch takes the folder above the nvcc on the path, which may be a script in /usr/local/bin: linking then fails.
    None if there is none.
    """
    said = [Path(os.environ[name]) for name in told if os.environ.get(name)]
    others = sorted(root.glob("cuda-*"), key=_version, reverse=True)
    places = [*said, root / "cuda", *others]
    return next((str(place) for place in places if (place / "lib64" / "libcudart.so").exists()), None)


def _version(folder: Path) -> list[int]:
    """[13, 0] of cuda-13.0."""
    return [int(part) for part in folder.name.removeprefix("cuda-").split(".") if part.isdigit()]
