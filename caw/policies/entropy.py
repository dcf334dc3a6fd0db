"""Mark only where the model is unsure: SWEET (Lee et al. 2023, arXiv 2305.15060), the paper's "+entropy" baseline."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from caw.checks import require_number
from caw.defaults import STRENGTH
from caw.policies.base import MAX_STRENGTH, Policy, Signals
from caw.policies.target import Target


@dataclass(frozen=True)
class EntropyThreshold(Policy):
    """Strength `value` where the entropy of p_i over the whole vocabulary is above `nats`, else 0.

    SWEET marks where entropy is high. The CAW paper's sentence says the opposite, which must be a slip: it cites SWEET.

    Args:
        nats: threshold, in [0, 100] nats. Equal entropy stays unmarked.
        value: strength in [0, 100].
        target: p-value at which marking may rest, or a `Target`; None = every token is marked as it comes.

    Raises TypeError or ValueError naming the argument.
    """

    nats: float
    value: float = STRENGTH
    target: Target | float | None = None

    def __post_init__(self) -> None:
        require_number("nats", self.nats, 0, 100, closed=True)
        require_number("strength", self.value, 0, MAX_STRENGTH, closed=True)
        self.keep_target()

    @property
    def max_strength(self) -> float:
        return float(self.value)

    def strength(self, signals: Signals) -> torch.Tensor:
        return torch.where(entropy(signals.logits) > self.nats, self.value, 0.0).float()


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of softmax(logits): [B, V] -> float32 [B]. Entries of -inf have probability 0."""
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    return torch.special.entr(log_probs.exp()).sum(dim=-1)
