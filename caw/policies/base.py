"""The base of all policies: a strength for each token, from the model's distributions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from caw.arrays import torch
from caw.checks import require_number
from caw.policies.target import Target, read_target
from caw.record import Record

MAX_STRENGTH = 100.0


@dataclass
class Signals:
    """The inputs of a policy for the next token of B sequences.

    current: record of p_i: the 100 greatest logits with their ids and probabilities.
    logits: float32 [B, V], the logits it was taken from, before temperature, top-k and top-p.
    capacity: float32 [B] in (0, 1), the predicted importance of the token; None unless the policy reads it.
    """

    current: Record
    logits: torch.Tensor
    capacity: torch.Tensor | None = None


class Policy(ABC):
    """Decides the strength of each token.

    reads_capacity: whether it needs `Signals.capacity`, which its evaluator predicts.
    looks_ahead: whether that evaluator reads what follows the token; the candidates then go through the model before
    the choice.
    target: p-value that texts should reach, or a `Target`; the strength is 0 once the text so far reaches it. None = no
    target.

    Strength 0 leaves the model's own token, 1 is the watermark's full strength (delta logits, top_k racing tokens). A
    row's strength must depend on that row alone and not on chance, so that a batch gives what each prompt alone gives.
    """

    reads_capacity: bool = False
    target: Target | float | None = None

    @property
    def looks_ahead(self) -> bool:
        return False

    @property
    @abstractmethod
    def max_strength(self) -> float:
        """The maximum strength of this policy. Ladders have no candidates beyond it."""

    def keep_target(self) -> None:
        """Check the target of a frozen policy and store it as a `Target`."""
        object.__setattr__(self, "target", read_target(self.target))

    @abstractmethod
    def strength(self, signals: Signals) -> torch.Tensor:
        """Return the strength of each token, float32 [B] in [0, max_strength]."""


def check_declared(policy: Policy) -> None:
    """Raise TypeError or ValueError unless its max_strength is a number that ladders can be built for."""
    require_number(f"max_strength of policy {type(policy).__name__}", policy.max_strength, 0, MAX_STRENGTH, closed=True)


def checked_strengths(policy: Policy, strength: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return strengths as float32. TypeError or ValueError for another kind or shape than that of `like`, [B]."""
    name, expected = type(policy).__name__, f"must give a float tensor of shape {list(like.shape)}"
    if not isinstance(strength, torch.Tensor) or not strength.is_floating_point():
        kind = f"of {strength.dtype}" if isinstance(strength, torch.Tensor) else type(strength).__name__
        raise TypeError(f"policy {name} {expected}, got {kind}; return one strength per row")
    if strength.shape != like.shape or strength.device != like.device:
        kind = f"{list(strength.shape)} on {strength.device}"
        raise ValueError(f"policy {name} {expected} on {like.device}, got {kind}; return one strength per row")
    return strength.float()


def refusal(policy: Policy, strength: float, where: str = "") -> str:
    """Return the error message for a strength out of range."""
    return (
        f"policy {type(policy).__name__} must give strengths in [0, {policy.max_strength:.9g}], up to its declared "
        f"max_strength, got {strength:.9g}{where}; fix its strength or declare a greater max_strength"
    )


def scaled(strength: float, factor: float) -> float:
    """Return a strength times a factor, rounded as in the steps."""
    return strength if factor == 1 else float(np.float32(strength) * np.float32(factor))
