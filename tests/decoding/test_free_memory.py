"""What a caller allows, what is free, what a container leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from caw.decoding import free_memory as free_module
from caw.decoding.free_memory import free_memory, memory_budget

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("given", "expected"),
    [(1000, 1000), ("8GiB", 8 << 30), ("1.5 mb", 1_500_000), ("2K", 2000), ("64 kib", 65536), ("77", 77)],
)
def test_sizes(given: Any, expected: int) -> None:
    assert memory_budget(given, CPU) == expected


@pytest.mark.serial
def test_shares_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (free_memory(CPU) or 0) > 1 << 20
    monkeypatch.setattr(free_module, "free_memory", lambda device: 1000)
    assert memory_budget(None, CPU) == 900
    assert memory_budget(0.5, CPU) == 500
    monkeypatch.setattr(free_module, "free_memory", lambda device: None)
    assert memory_budget(None, CPU) is None, "a system that does not say sets no limit"


@pytest.mark.serial
def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_module, "CONTAINER", tmp_path)
    host = free_memory(CPU)
    assert host is not None
    for name, text in (("max", "5000\n"), ("current", "3500\n"), ("stat", "anon 7\ninactive_file 200\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert free_memory(CPU) == 1700
    (tmp_path / "memory.max").write_text("max\n")
    assert abs((free_memory(CPU) or 0) - host) < host // 2


@pytest.mark.serial
def test_a_share_may_be_text() -> None:
    cpu = torch.device("cpu")
    whole, half = memory_budget("1.0", cpu), memory_budget("0.5", cpu)
    assert whole is not None and half is not None and 0.4 < half / whole < 0.6
