"""What a policy is: per token, a strength from what the model's distributions say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from caw.record import Record

MAX_STRENGTH = 100.0


@dataclass
class Signals:
    """What a policy may look at; B positions.

    current: record of p_i. logits: float32 [B, V], the plain logits behind it.
    capacity: float32 [B], present only for policies that ask for the look-ahead.
    """

    current: Record
    logits: torch.Tensor
    capacity: torch.Tensor | None = None


class Policy(ABC):
    """Decides the strength of each token. `looks_ahead` asks for capacity, which needs the sibling forward first."""

    looks_ahead: bool = False

    @property
    @abstractmethod
    def max_strength(self) -> float:
        """The greatest strength this policy ever gives; ladders are built up to it."""

    @abstractmethod
    def strength(self, signals: Signals) -> torch.Tensor:
        """Strength of each position, float32 [B], >= 0."""
