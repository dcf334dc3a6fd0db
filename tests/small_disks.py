"""Disks that take a few bytes at a time, or fill up: injected ones anywhere, a real one where it may be mounted."""

import builtins
import contextlib
import errno
import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class ShortFile(io.FileIO):
    """Takes at most seven bytes a call, as the interface of `write` allows."""

    def write(self, data: Any) -> int:
        return super().write(bytes(data)[:7])


class FullFile(io.FileIO):
    """Takes part of the write that meets the end of the disk, then nothing."""

    room = 0

    def write(self, data: Any) -> int:
        if not type(self).room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = super().write(bytes(data)[: type(self).room])
        type(self).room -= taken
        return taken


def inject(monkeypatch: pytest.MonkeyPatch, kind: type[io.FileIO]) -> None:
    def opened(path: Any, mode: str = "r", buffering: int = -1, **options: Any) -> Any:
        if buffering != 0:
            return builtins.open(path, mode, buffering, **options)
        return kind(path, mode, **options)

    monkeypatch.setattr("caw.io.lines.open", opened, raising=False)


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own at `folder`; skips where none may be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"a file system can be mounted by root on Linux only: {error}")
    if done.returncode:
        pytest.skip(f"a file system can be mounted by root on Linux only: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, left: int) -> Path:
    ballast = folder / "ballast"
    found = os.statvfs(folder)
    ballast.write_bytes(b"x" * (found.f_bavail * found.f_frsize - left))
    return ballast
