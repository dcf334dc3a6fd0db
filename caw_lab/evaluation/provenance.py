"""Provenance of texts: digests of weights, versions, commit, command. Never a key."""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import caw
from caw.models.fingerprint import state_sha256

PACKAGES = ("torch", "transformers", "triton")
SOURCES = ("caw", "caw_lab", "triton_kernels", "csrc")


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def weights_sha256(source: str, model: torch.nn.Module) -> str:
    """Return SHA-256 of the file a model was read from, or of its loaded weights if it was not one file."""
    path = Path(source)
    return file_sha256(path) if path.is_file() else state_sha256(model.state_dict())


def run_record(command: str = "", **more: Any) -> dict[str, Any]:
    """Return versions, commit, command, processor and threads, and `more`."""
    versions = {"caw": caw.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None  # type: ignore[assignment]
    return {
        "command": command or shlex.join(["caw", *sys.argv[1:]]),
        "versions": versions,
        "commit": git_commit(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        **more,
    }


def git_commit() -> str | None:
    """Return the commit of this library's checkout, with "-dirty" if it has edits; None without a checkout."""
    folder = Path(caw.__file__).resolve().parents[1]
    if not (folder / ".git").exists():
        return None
    quiet = {"cwd": folder, "capture_output": True, "text": True, "env": {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}}
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, **quiet)  # type: ignore[call-overload]
        changed = ["git", "status", "--porcelain", "-uno", "--", *SOURCES]
        edits = subprocess.run(changed, check=True, **quiet)  # type: ignore[call-overload]
    except (OSError, subprocess.CalledProcessError):
        return None
    return str(head.stdout.strip()) + ("-dirty" if edits.stdout.strip() else "")
