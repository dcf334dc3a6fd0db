"""What a policy is: a strength for each token, from what the model's distributions say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

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

    Strength 0 leaves the model's own token, 1 is the watermark's full strength (delta logits, top_k racing tokens).
    A row's strength must depend on that row alone and not on chance: then a batch gives what each prompt alone gives.
    """

    looks_ahead: bool = False

    @property
    @abstractmethod
    def max_strength(self) -> float:
        """The greatest strength this policy ever gives. Ladders hold no candidates beyond it."""

    @abstractmethod
    def strength(self, signals: Signals) -> torch.Tensor:
        """Strength of each token, float32 [B] in [0, max_strength]."""
