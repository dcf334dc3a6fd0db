"""One p-value of many tests: what the likeliest of n independent ones says, corrected for their number."""

from dataclasses import replace

import numpy as np

from caw.policies import Target
from caw.watermarks import Signature, Watermark


def family_wise(p_values: np.ndarray, n: int | np.ndarray) -> np.ndarray:
    """1 - (1 - p)^n, float64 of any shape, n too: the chance that any of n independent keys gives p or less."""
    with np.errstate(divide="ignore"):  # p = 1
        corrected: np.ndarray = -np.expm1(n * np.log1p(-np.asarray(p_values, dtype=np.float64)))
    return corrected


def alone(fpr: float, n: int) -> float:
    """Return the level that one of n keys must reach alone: 1 - (1 - level)^n = fpr."""
    return fpr if n == 1 else float(-np.expm1(np.log1p(-fpr) / n))


def level_of(fpr: float, tried: Signature, mark: Signature) -> float:
    """Return the level by the sub-keys of `mark` that gives a text `fpr` in a test of `tried`, which may try more."""
    n, own = tried.family, mark.family
    return fpr if n == own else float(family_wise(np.float64(alone(fpr, n)), own))


def lone_target(target: Target, mark: Signature) -> Target:
    """Return the target of the sub-key that marks, whose evidence alone is seen while a text is made."""
    return replace(target, p_value=alone(target.p_value, mark.family))


def tests_of(watermark: Signature) -> str:
    """Say what is tried for a text of a watermark with several sub-keys or parts."""
    if len(watermark.parts) > 1:
        return " and ".join(part.name for part in watermark.parts)
    return f"{watermark.family} sub-keys"


def part_of(watermark: Signature, family: str | None) -> Watermark:
    """Return the part of a watermark that a result names (`DetectionResult.family`); None = the first."""
    return next((part for part in watermark.parts if part.name == family), watermark.parts[0])
