"""What a policy is: a strength for each token, from what the model's distributions say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from caw.policies.target import Target, read_target
from caw.record import Record

MAX_STRENGTH = 100.0


@dataclass
class Signals:
    """What a policy may look at, for the next token of B sequences.

    current: record of p_i: the 100 greatest logits with their ids and probabilities.
    logits: float32 [B, V], the logits it was taken from, before temperature, top-k and top-p.
    capacity: float32 [B] in (0, 1), the predicted importance of the token; None unless the policy looks ahead.
    """

    current: Record
    logits: torch.Tensor
    capacity: torch.Tensor | None = None


class Policy(ABC):
    """Decides the strength of each token.

    looks_ahead: whether it needs `Signals.capacity`; the candidates then go through the model before the choice.
    target: how far texts are to be marked: a p-value or a `Target`; strengths are then multiplied by what its law says
        of the text so far. None = every token as it comes.

    Strength 0 leaves the model's own token, 1 is the watermark's full strength (delta logits, top_k racing tokens).
    A row's strength must depend on that row alone and not on chance: then a batch gives what each prompt alone gives.
    """

    looks_ahead: bool = False
    target: Target | float | None = None

    @property
    @abstractmethod
    def max_strength(self) -> float:
        """The greatest strength this policy ever gives by itself."""

    @property
    def greatest(self) -> float:
        """The greatest that its target makes of it. Ladders hold no candidates beyond it."""
        target = read_target(self.target)
        return self.max_strength if target is None else scaled(self.max_strength, target.steering.max_factor)

    def keep_target(self) -> None:
        """Check the target of a frozen policy and keep it as a `Target`."""
        object.__setattr__(self, "target", read_target(self.target))

    @abstractmethod
    def strength(self, signals: Signals) -> torch.Tensor:
        """Strength of each token, float32 [B] in [0, max_strength]."""


def scaled(strength: float, factor: float) -> float:
    """A strength times a factor, rounded as the steps round it."""
    return strength if factor == 1 else float(np.float32(strength) * np.float32(factor))
