"""The model that engines are played with, and a file of profiles for one."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from decoding.architectures import build
from integrations.profile_file import FILE, KEY


@pytest.fixture
def llama() -> Any:
    return build("llama")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A vLLM of the version that was tried, and a file of profiles; the file's path."""
    fake = ModuleType("vllm")
    fake.__version__ = "0.32.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", fake)
    path = tmp_path / "marks.json"
    path.write_text(json.dumps(FILE))
    monkeypatch.setenv("CAW_VLLM_CONFIG", str(path))
    monkeypatch.setenv("HOUSE", KEY)
    return path
