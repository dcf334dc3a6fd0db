"""The model that engines are played with."""

from typing import Any

import pytest
from decoding.architectures import build


@pytest.fixture
def llama() -> Any:
    return build("llama")
