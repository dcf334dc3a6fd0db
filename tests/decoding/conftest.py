"""Every architecture as a fixture."""

from __future__ import annotations

from typing import Any

import pytest
from decoding.architectures import CONFIGS, build
from decoding.brute_force import COMPARED, DIFFERED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many token lists were compared, and each that differed where the decision was within the table's margin."""
    if COMPARED:
        terminalreporter.write_line(f"equal tokens: {len(COMPARED)} comparisons, {len(DIFFERED)} within their margin")
        for line in DIFFERED:
            terminalreporter.write_line(f"  {line}")


@pytest.fixture(params=sorted(CONFIGS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(name: str) -> Any:
    """A tiny float32 model of each architecture in turn."""
    return build(name)


@pytest.fixture(scope="session")
def llama() -> Any:
    return build("llama")
