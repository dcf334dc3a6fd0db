"""Mark only where the model is uncertain: SWEET (Lee et al. 2023, arXiv 2305.15060), the paper's "+entropy"."""

from __future__ import annotations

from dataclasses import dataclass

from caw.arrays import torch
from caw.checks import require_number
from caw.defaults import STRENGTH
from caw.policies.base import MAX_STRENGTH, Policy, Signals
from caw.policies.target import Target

LEAST = -1e4  # nats; a log-probability below it belongs to a probability of 0, and 0 times -inf would be nan


@dataclass(frozen=True)
class EntropyThreshold(Policy):
    """Strength `value` where the entropy of p_i over the whole vocabulary is above `nats`, otherwise 0.

    SWEET marks where entropy is high. The CAW paper says the opposite, which must be a slip, since it cites SWEET.

    Args:
        nats: threshold, in [0, 100] nats. Equal entropy stays unmarked.
        value: strength in [0, 100].
        target: p-value at which marking may stop, or a `Target`; None = no target.

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
    """Return the entropy in nats of softmax(logits): [B, V] -> float32 [B]. Entries of -inf have probability 0.

    Row by row on a CPU: one row fits the cache, a hundred do not, and no row then depends on the others.
    """
    assert logits.dim() == 2
    if logits.device.type != "cpu" or torch.compiler.is_compiling():
        return _entropy(logits)
    return torch.cat([_entropy(row) for row in logits.split(1)])


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    probs = log_probs.exp()
    return -(probs * log_probs.clamp_min(LEAST)).sum(dim=-1)  # torch.special.entr takes five times as long on a CPU
