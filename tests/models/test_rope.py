"""From which length on a model's rotary embedding changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from caw.models.rope import rope_limit

LONG = {"rope_type": "longrope", "original_max_position_embeddings": 40}


def model(**config: Any) -> Any:
    text = SimpleNamespace(**{"max_position_embeddings": 100, **config})
    return SimpleNamespace(config=SimpleNamespace(get_text_config=lambda decoder: text))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"rope_parameters": None, "rope_scaling": None}, None),
        ({"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 40}}, None),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 100),
        ({"rope_scaling": {"type": "dynamic"}}, 100),  # as older configs say it
        ({"rope_parameters": LONG}, 40),
        ({"rope_parameters": {"rope_type": "longrope"}, "original_max_position_embeddings": 30}, 30),
        ({"rope_parameters": {"rope_type": "longrope"}, "max_position_embeddings": None}, 0),
        ({"rope_parameters": {"full_attention": LONG, "sliding_attention": {"rope_type": "default"}}}, 40),
    ],
)
def test_limit(config: dict[str, Any], expected: int | None) -> None:
    assert rope_limit(model(**config)) == expected
