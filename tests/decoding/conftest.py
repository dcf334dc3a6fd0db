"""Every architecture as a fixture."""

from typing import Any

import pytest
from decoding.architectures import CONFIGS, build


@pytest.fixture(params=sorted(CONFIGS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(name: str) -> Any:
    return build(name)


@pytest.fixture(scope="session")
def llama() -> Any:
    return build("llama")
