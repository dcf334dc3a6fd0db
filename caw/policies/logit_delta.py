"""Mark only undecided positions: the gap between the two greatest logits (the paper's logit-delta baseline)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from caw.checks import require_number
from caw.defaults import STRENGTH
from caw.policies.base import MAX_STRENGTH, Policy, Signals


@dataclass(frozen=True)
class LogitDeltaThreshold(Policy):
    """Mark at `value` where top-1 minus top-2 logit is below `gap`; else not at all."""

    gap: float
    value: float = STRENGTH

    def __post_init__(self) -> None:
        require_number("gap", self.gap, 0, 1e6, closed=True)
        require_number("strength", self.value, 0, MAX_STRENGTH, closed=True)

    @property
    def max_strength(self) -> float:
        return float(self.value)

    def strength(self, signals: Signals) -> torch.Tensor:
        top = signals.current.values
        return torch.where(top[:, 0] - top[:, 1] < self.gap, self.value, 0.0).float()
