"""What gates leave behind, a line each in one committed file, and whether it still holds."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path

PASSED, FAILED, UNAVAILABLE = "passed", "failed", "unavailable"
# the flags by which kernels are chosen, here and in the libraries
FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "sve")
PACKAGES = ("torch", "triton", "numpy", "scipy", "transformers", "pytest")


@dataclass(frozen=True)
class Receipt:
    """digest: of the inputs; outcome: passed, failed, or unavailable for want of a tool or a test (`reason`)."""

    gate: str
    digest: str
    outcome: str
    seconds: float
    reason: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    processor: str = ""
    flags: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.outcome not in (PASSED, FAILED, UNAVAILABLE):
            raise ValueError(f"outcome must be passed, failed or unavailable, got {self.outcome!r}; run the gate again")

    def write(self, path: Path) -> None:
        """Put this receipt in the place of the gate's last one; the other lines stay, sorted by gate."""
        kept = {**read(path), self.gate: self}
        lines = [
            json.dumps({**asdict(r), "seconds": round(r.seconds, 1)}, ensure_ascii=False)
            for _, r in sorted(kept.items())
        ]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Receipt]:
    """The committed receipts by gate. A line that cannot be read counts as missing (a merge may have left both)."""
    receipts: dict[str, Receipt] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found = json.loads(line)
            receipt = Receipt(**{**found, "flags": tuple(found.get("flags", ()))})
        except (ValueError, TypeError):
            continue
        receipts[receipt.gate] = receipt
    return receipts


def state(receipt: Receipt | None, digest: str) -> str:
    """ "holds", or why not: "missing", "failed", "unavailable", "stale"."""
    if receipt is None:
        return "missing"
    if receipt.outcome != PASSED:
        return receipt.outcome
    return "holds" if receipt.digest == digest else "stale"


def processor() -> tuple[str, tuple[str, ...]]:
    """(model, those of FLAGS it has)."""
    source = Path("/proc/cpuinfo")
    text = source.read_text() if source.exists() else ""
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", text, re.MULTILINE)
    have = flags[1].split() if flags else []
    return model[1] if model else platform.machine(), tuple(flag for flag in FLAGS if flag in have)


def versions(tools: tuple[str, ...]) -> dict[str, str]:
    """Of Python, the packages that compute, and the gate's own tools."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    for tool in tools:
        if shutil.which(tool):
            said = subprocess.run([tool, "--version"], capture_output=True, text=True).stdout
            number = re.search(r"(?:release |-)?(\d+\.\d+(?:\.\d+)*)", said)
            found[tool] = number[1] if number else said.strip()
    return found
