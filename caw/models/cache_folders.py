"""Cache folders that are created atomically, so that a killed run leaves no partial one."""

import contextlib
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIST = "files.json"
PARTIAL, LEFTOVER_SECONDS = ".partial-", 24 * 3600


def has_config(target: Path) -> bool:
    """Return whether it is a folder with a config.json, which is written before a folder is moved into place."""
    return (target / "config.json").is_file()


def write_list(folder: Path, **facts: Any) -> None:
    """Write the digests of a folder's files into it, and facts about them."""
    content = json.dumps({"facts": facts, "files": _digests(folder)})
    (folder / LIST).write_text(content, encoding="utf-8")


def listed(folder: Path) -> dict[str, Any] | None:
    """Return the facts stored with a folder's list; None unless it contains exactly those files."""
    try:
        found = json.loads((folder / LIST).read_text(encoding="utf-8"))
        return dict(found["facts"]) if found["files"] == _digests(folder) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / LIST)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def filled_once(target: Path, make: Callable[[Path], None], whole: Callable[[Path], Any] = has_config) -> str:
    """Return folder `target`, filled by `make` and moved into place unless `whole`. PermissionError for the cache."""
    if not whole(target):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _drop_leftovers(target, whole)
            _fill(target, make, whole)
        except PermissionError as error:
            raise PermissionError(
                f"cannot write the model cache {target.parent}; set CAW_CACHE to a folder you can write"
            ) from error
    return str(target)


def _drop_leftovers(target: Path, whole: Callable[[Path], Any]) -> None:
    """Remove an incomplete target, and old leftovers of killed runs."""
    if target.exists() and not whole(target):
        shutil.rmtree(target, ignore_errors=True)
    for folder in target.parent.glob(f"{PARTIAL}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > LEFTOVER_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _fill(target: Path, make: Callable[[Path], None], whole: Callable[[Path], Any]) -> None:
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=PARTIAL))
    try:
        make(work)
        try:
            work.rename(target)
        except OSError:
            if not whole(target):
                raise
            # another process was faster; its copy is just as good
    finally:
        shutil.rmtree(work, ignore_errors=True)
