"""CAW's policy: the less a token matters, the more strongly it is marked.

    strength = beta * max(0, (theta - capacity) / theta)        (paper, appendix "Mechanisms ...", delta' and K')

Paper: arXiv 2506.07403. `capacity` is its C-hat. The name is misleading: it is the predicted **importance** of the
token, so high capacity means "protect".
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caw.arrays import torch
from caw.capacity import CAPACITY_FLOOR, strength_of
from caw.checks import require_number
from caw.defaults import THETA
from caw.evaluator.shelf import UNIVERSAL
from caw.policies.base import MAX_STRENGTH, Policy, Signals
from caw.policies.target import Target

if TYPE_CHECKING:
    from caw.evaluator import Evaluator


@dataclass(frozen=True)
class CapacityPolicy(Policy):
    """Marks each token more strongly the less important the evaluator predicts it to be.

    Args:
        evaluator: name of a shipped evaluator, path of a .safetensors file, or an Evaluator. The default serves every
            model whose tokenizer is there and reads no next position, so a step costs what an unmarked one does,
            however many texts run; "universal" looks ahead.
        theta: threshold in [0, 1]. Tokens with a capacity above it stay unmarked; 0 protects every token.
        beta: strength of a token with zero importance, in [0, 100]; None = default of the evaluator's model, see
            `caw.defaults`.
        target: p-value at which marking may stop, or a `Target`; None = no target.

    Raises TypeError or ValueError naming the argument, and FileNotFoundError for a missing evaluator file.
    """

    evaluator: Evaluator | str | Path = UNIVERSAL
    theta: float = THETA
    beta: float = None  # type: ignore[assignment]  # a number from the moment it exists
    target: Target | float | None = None
    network: Evaluator = field(init=False, repr=False, compare=False)

    reads_capacity = True

    def __post_init__(self) -> None:
        require_number("theta", self.theta, 0, 1, closed=True)
        if self.beta is not None:
            require_number("beta", self.beta, 0, MAX_STRENGTH, closed=True)
        self.keep_target()
        from caw.evaluator import Evaluator, default_beta  # which are torch's

        if not isinstance(self.evaluator, (Evaluator, str, Path)):
            raise TypeError(
                f"evaluator must be a name, a path or a caw Evaluator, got {type(self.evaluator).__name__}; pass e.g. "
                "'smollm2-135m'"
            )
        network = self.evaluator if isinstance(self.evaluator, Evaluator) else Evaluator.load(self.evaluator)
        network.check_numbers()
        object.__setattr__(self, "network", network)
        if self.beta is None:
            object.__setattr__(self, "beta", default_beta(network))

    def serving(self, tokenizer: Any) -> CapacityPolicy:
        """Return the policy with its evaluator as it reads this tokenizer's model; see `Evaluator.serving`."""
        network = self.network.serving(tokenizer)
        if network is self.network:
            return self
        served = copy.copy(self)
        object.__setattr__(served, "network", network)
        return served

    @property
    def looks_ahead(self) -> bool:
        """Whether the evaluator reads the position behind the token: the only place that decides it."""
        return self.reads_capacity and self.network.spec.next > 0

    @cached_property
    def max_strength(self) -> float:
        if self.theta == 0:
            return 0.0
        floor = torch.tensor([CAPACITY_FLOOR], dtype=torch.float32)
        return float(strength_of(floor, self.theta, self.beta))

    def strength(self, signals: Signals) -> torch.Tensor:
        assert signals.capacity is not None
        return strength_of(signals.capacity.float(), self.theta, self.beta)
