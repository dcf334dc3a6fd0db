"""Mark only where the two greatest logits are close: the paper's logit-delta baseline."""

from __future__ import annotations

from dataclasses import dataclass

from caw.arrays import torch
from caw.checks import require_number
from caw.defaults import STRENGTH
from caw.policies.base import MAX_STRENGTH, Policy, Signals
from caw.policies.target import Target


@dataclass(frozen=True)
class LogitDeltaThreshold(Policy):
    """Strength `value` where the greatest logit leads the second by less than `gap`, otherwise 0.

    Args:
        gap: threshold in [0, 1e6], in logits. An equal lead stays unmarked.
        value: strength in [0, 100].
        target: p-value at which marking may stop, or a `Target`; None = no target.

    Raises TypeError or ValueError naming the argument.
    """

    gap: float
    value: float = STRENGTH
    target: Target | float | None = None

    def __post_init__(self) -> None:
        require_number("gap", self.gap, 0, 1e6, closed=True)
        require_number("strength", self.value, 0, MAX_STRENGTH, closed=True)
        self.keep_target()

    @property
    def max_strength(self) -> float:
        return float(self.value) if self.gap else 0.0  # no lead is less than 0

    def strength(self, signals: Signals) -> torch.Tensor:
        top = signals.current.values
        return torch.where(top[:, 0] - top[:, 1] < self.gap, self.value, 0.0).float()
