"""Folders of the cache that are made once, so that a killed run leaves no half of one."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PARTIAL, LEFTOVER_SECONDS = ".partial-", 24 * 3600


def made_once(target: Path, make: Callable[[Path], None]) -> str:
    """The folder `target`; where it has no config.json yet, `make` fills a temporary one, which is moved in place.

    Raises PermissionError, in one sentence, where the cache cannot be written, and what `make` raises.
    """
    if not (target / "config.json").is_file():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _drop_leftovers(target)
            _fill(target, make)
        except PermissionError as error:
            raise PermissionError(
                f"cannot write the model cache {target.parent}; set CAW_CACHE to a folder you can write"
            ) from error
    return str(target)


def _drop_leftovers(target: Path) -> None:
    """Remove a target without a config, and old leftovers of killed runs."""
    if target.exists():
        shutil.rmtree(target, ignore_errors=True)
    for folder in target.parent.glob(f"{PARTIAL}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > LEFTOVER_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _fill(target: Path, make: Callable[[Path], None]) -> None:
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=PARTIAL))
    try:
        make(work)
        try:
            work.rename(target)
        except OSError:
            if not (target / "config.json").is_file():
                raise
            # another process was faster; its copy is just as good
    finally:
        shutil.rmtree(work, ignore_errors=True)
