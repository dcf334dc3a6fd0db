"""One p-value of many tests: what the likeliest of n independent ones says, corrected for their number."""

from __future__ import annotations

import numpy as np

from caw.watermarks import Watermark


def family_wise(p_values: np.ndarray, n: int | np.ndarray) -> np.ndarray:
    """1 - (1 - p)^n, float64 of any shape, n too: the chance that any of n independent keys gives p or less."""
    with np.errstate(divide="ignore"):  # p = 1
        corrected: np.ndarray = -np.expm1(n * np.log1p(-np.asarray(p_values, dtype=np.float64)))
    return corrected


def alone(fpr: float, n: int) -> float:
    """Return the level that one of n keys must reach alone: 1 - (1 - level)^n = fpr."""
    return fpr if n == 1 else float(-np.expm1(np.log1p(-fpr) / n))


def tests_of(watermark: Watermark) -> str:
    """Say what is tried for a text of a watermark with several sub-keys or parts."""
    if len(watermark.parts) > 1:
        return " and ".join(part.name for part in watermark.parts)
    return f"{watermark.family} sub-keys"


def part_of(watermark: Watermark, family: str | None) -> Watermark:
    """Return the part of a watermark that a result names (`DetectionResult.family`); None = it has one."""
    return next((part for part in watermark.parts if part.name == family), watermark)
