"""How much memory there is: what a caller allows, what is free on a device, what a container's limit leaves."""

from __future__ import annotations

import re
from pathlib import Path

import torch

DEFAULT_SHARE = 0.9  # of what is free
UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
CONTAINER = Path("/sys/fs/cgroup")  # where Linux tells a container's own limits (cgroup v2)


def memory_budget(max_memory: int | float | str | None, device: torch.device) -> int | None:
    """Bytes that decoding may use; None = unknown, so unlimited.

    Args:
        max_memory: bytes, a share of what is free as a float in (0, 1], or text such as "8GiB"; None = 0.9.

    Raises TypeError or ValueError for anything else.
    """
    if isinstance(max_memory, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", max_memory.lower())
        if not match:
            raise ValueError(f"max_memory must be a size such as '8GiB' or '500MB', got {max_memory!r}; add a unit")
        if match[2] is None and "." in match[1]:
            return memory_budget(float(match[1]), device)  # a share, as on a command line
        return int(float(match[1]) * UNITS[match[2] or ""])
    if isinstance(max_memory, bool) or not isinstance(max_memory, (int, float, type(None))):
        raise TypeError(
            f"max_memory must be bytes, a share of free memory or a text such as '8GiB', got "
            f"{type(max_memory).__name__}; leave it out"
        )
    if isinstance(max_memory, int):
        if max_memory <= 0:
            raise ValueError(f"max_memory must be at least 1 byte, got {max_memory}; leave it out")
        return max_memory
    share = DEFAULT_SHARE if max_memory is None else max_memory
    if not 0 < share <= 1:
        raise ValueError(f"max_memory as a share of free memory must be in (0, 1], got {max_memory}; leave it out")
    free = free_memory(device)
    return None if free is None else int(share * free)


def free_memory(device: torch.device) -> int | None:
    """Bytes free on the device, what torch keeps for reuse included; None where the system does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        available = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    free = [int(available[1]) * 1024] if available else []
    return min([*free, *_left_in_container(CONTAINER)], default=None)


def _left_in_container(folder: Path) -> list[int]:
    """What a container's limit leaves, in bytes, counting files it can drop as free; empty if it has no limit."""
    try:
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        droppable = re.search(r"^inactive_file (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
    except OSError:
        return []
    if not limit.isdecimal():  # "max"
        return []
    return [max(0, int(limit) - int(used) + (int(droppable[1]) if droppable else 0))]


def readable(size: int) -> str:
    """Bytes in the greatest unit of which there is at least one."""
    for unit in ("GiB", "MiB", "KiB"):
        scale = UNITS[unit[:2].lower()]
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
