"""Every architecture as a fixture."""

from __future__ import annotations

from typing import Any

import pytest
from decoding.architectures import CONFIGS, build

from caw.decoding.drafts.price import RowPrice


@pytest.fixture(autouse=True)
def steady_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many drafts are carried does not depend on how busy the machine is."""

    class Steady(RowPrice):
        def saw(self, rows: int, seconds: float) -> None:
            return

    monkeypatch.setattr("caw.decoding.drafts.start.price_for", lambda model: Steady())


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
