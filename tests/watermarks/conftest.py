"""What tests against transformers' own watermarks share."""

from typing import Any

import pytest
from tiny import tiny_model


@pytest.fixture(scope="module")
def model() -> Any:
    model = tiny_model(97)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model
