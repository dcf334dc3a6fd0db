"""The plain watermark: every token at the same strength."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from caw.checks import require_number
from caw.defaults import STRENGTH
from caw.policies.base import MAX_STRENGTH, Policy, Signals


@dataclass(frozen=True)
class FixedStrength(Policy):
    """Mark every token at `value`; 1 is the watermark's own full strength, 0 leaves the text unmarked."""

    value: float = STRENGTH

    def __post_init__(self) -> None:
        require_number("strength", self.value, 0, MAX_STRENGTH, closed=True)

    @property
    def max_strength(self) -> float:
        return float(self.value)

    def strength(self, signals: Signals) -> torch.Tensor:
        return torch.full_like(signals.current.logsumexp, self.value)
