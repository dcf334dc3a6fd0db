"""The plain watermark: the same strength for every token."""

from __future__ import annotations

from dataclasses import dataclass

from caw.arrays import torch
from caw.checks import require_number
from caw.defaults import STRENGTH
from caw.policies.base import MAX_STRENGTH, Policy, Signals
from caw.policies.target import Target


@dataclass(frozen=True)
class FixedStrength(Policy):
    """Strength `value` for every token: 1 is the watermark's own full strength, 0 leaves the text unmarked.

    Args:
        value: strength in [0, 100].
        target: p-value at which marking may stop, or a `Target`; None = no target.

    Raises TypeError or ValueError naming the argument.
    """

    value: float = STRENGTH
    target: Target | float | None = None

    def __post_init__(self) -> None:
        require_number("strength", self.value, 0, MAX_STRENGTH, closed=True)
        self.keep_target()

    @property
    def max_strength(self) -> float:
        return float(self.value)

    def strength(self, signals: Signals) -> torch.Tensor:
        return torch.full_like(signals.current.logsumexp, self.value)
