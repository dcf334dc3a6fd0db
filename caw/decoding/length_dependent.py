"""Texts that outgrow a model's first rotary embedding: decoded alone, read whole, and read anew where they outgrow it.

Beyond `rope_limit` tokens every position is turned otherwise ("longrope": Phi-3's 128k versions from 4097 on). In
transformers the longest text of a batch decides for all; here each text is as if alone. What was read of a text before
holds no longer once it outgrows the limit: transformers' Phi-3 then reads it anew, and so does this library for all
models, so that a text is what the model says of it as a whole.
"""

from __future__ import annotations

import warnings
from typing import Any

from caw.rope import rope_limit


def outgrown(model: Any, capacity: int) -> int | None:
    """The limit that texts of `capacity` tokens outgrow; None where they outgrow none."""
    limit = rope_limit(model)
    return limit if limit is not None and capacity > limit else None


def alone(batch: int, limit: int, capacity: int, keep_rows: bool) -> int:
    """One sequence at a time, with a warning where more were asked for; ValueError where all rows are the caller's."""
    if batch == 1:
        return 1
    what = f"texts of up to {capacity} tokens outgrow the model's first rotary embedding, which is for {limit}"
    if keep_rows:
        raise ValueError(
            f"{what}, so each has to be decoded alone, got {batch} rows; give one row a call, use caw.generate, or "
            "shorten prompts or max_new_tokens"
        )
    warnings.warn(
        f"{what}: they are decoded one at a time, not {batch}; shorten prompts or max_new_tokens to have them together",
        stacklevel=4,
    )
    return 1
