"""Rotary embeddings that change with the length of the text: from which length on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LENGTH_DEPENDENT = ("dynamic", "longrope")
ORIGINAL = "original_max_position_embeddings"


def rope_limit(model: Any) -> int | None:
    """Length in tokens beyond which the rotation of every position changes; None where it never does, 0 where the
    config does not say from which length on.

    Keys and values computed for a shorter text are wrong for a longer one, and in transformers the longest text of a
    batch decides for all of them.
    """
    config = model.config.get_text_config(decoder=True)
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    by_layer = [
        value for value in parameters.values() if isinstance(value, Mapping)
    ]  # some models have one for each type of layer
    limits = [_limit(each, config) for each in (parameters, *by_layer)]
    return min((limit for limit in limits if limit is not None), default=None)


def _limit(parameters: Mapping[str, Any], config: Any) -> int | None:
    if (parameters.get("rope_type") or parameters.get("type")) not in LENGTH_DEPENDENT:
        return None
    original = parameters.get(ORIGINAL) or getattr(config, ORIGINAL, None)
    return int(original or getattr(config, "max_position_embeddings", None) or 0)
