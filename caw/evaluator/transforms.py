"""What a network may be given of a probability: itself, its logarithm, or its distance to the greatest."""

from __future__ import annotations

from typing import Literal, get_args

Transform = Literal["raw", "log", "gap"]
TRANSFORMS: tuple[Transform, ...] = get_args(Transform)
