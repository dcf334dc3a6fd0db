"""The machine, versions and commit that a result was measured with."""

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from caw import _ext
from caw.detectable.receipts import versions
from caw.triton_kernels.tuned import kept_count


def about(device: torch.device | None = None) -> dict[str, Any]:
    """machine, versions and commit of this run; nothing that names the machine or a folder on it."""
    machine: dict[str, Any] = {
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}", "python": platform.python_version(),
    }  # fmt: skip
    if device is not None and device.type == "cuda":
        machine |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
        machine["cuda_kernels"] = _ext.WHY_MISSING_CUDA or "built"
        machine["tuned_products"] = kept_count(machine["gpu"])
    return {"machine": machine, "versions": versions(), "commit": commit()}


def processor() -> str:
    """The CPU's own name where the system tells it, with the vector extensions that this library uses."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    name = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.+)$", text, re.MULTILINE)
    known = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flags and f in flags[1].split()]
    return " ".join([name[1].strip() if name else platform.machine(), *known])


def commit() -> str:
    """Return the checkout's commit, with a + if files were changed; "" outside a checkout."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():  # an installed package: a repository around it is another project's
        return ""
    try:
        commands = (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        head, changed = (
            subprocess.run(
                ["git", "-C", str(folder), *c], capture_output=True, text=True, check=True, timeout=20
            ).stdout
            for c in commands
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return head.strip() + ("+" if changed.strip() else "")
