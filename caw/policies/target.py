"""Targets: the p-value that a finished text should reach, and how strength follows the evidence so far.

The generator holds the key, so it knows the score of the text it writes (`caw.decoding.evidence`). A control law turns
that into a factor of every strength: 0 if the text is detected already, more if it is behind. The decision is the
detector's, on the finished text: some texts are tokenised differently from how they were written, and readers edit
them. A margin leaves room for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import torch

from caw.checks import require_int, require_number
from caw.io.show import shown

if TYPE_CHECKING:
    from caw.policies.base import Policy

MAX_FACTOR = 100.0
EARLY = 8  # tokens by which the planned z runs ahead, so that texts are marked from the start
# plus the 2.33 of p = 1 %, this is about the z of 3 at which marking stopped in a trial of 400 questions (KGW under
# CAW): 92.5 % of the texts detected, 3.0 points below the accuracy of unmarked ones; without a stop 95.5 %, 5.5 below
MARGIN = 0.6


@dataclass
class Standing:
    """Progress of B texts towards their target.

    z: float64 [B], of the text so far. needed: float64 [B], the z at which the target is reached, including the margin.
    tokens, budgets: int64 [B], tokens generated so far, and their maximum.
    """

    z: torch.Tensor
    needed: torch.Tensor
    tokens: torch.Tensor
    budgets: torch.Tensor

    @property
    def found(self) -> torch.Tensor:
        """Whether each text has reached its target, bool [B]."""
        return self.z >= self.needed


class Law(ABC):
    """Control law: how strength follows the evidence. A row's factor must depend on that row alone."""

    @property
    @abstractmethod
    def max_factor(self) -> float:
        """The maximum factor."""

    @abstractmethod
    def factor(self, standing: Standing) -> torch.Tensor:
        """Return the factor of each row's strength, float32 [B] in [0, max_factor]; reads nothing from the device."""

    def strength(self, strength: torch.Tensor, capacity: torch.Tensor, greatest: torch.Tensor) -> torch.Tensor:
        """Return the strength of tokens whose importance is known, float32 [B], including the factor.

        capacity: float32 [B] in (0, 1). greatest: float32 [B], the policy's maximum times the factor.
        """
        return strength


@dataclass(frozen=True)
class Stop(Law):
    """The policy's own strength until the text is detected, then 0."""

    @property
    def max_factor(self) -> float:
        return 1.0

    def factor(self, standing: Standing) -> torch.Tensor:
        return (standing.z < standing.needed).float()


@dataclass(frozen=True)
class Deficit(Law):
    """Follows a planned z, which grows with the square root of the length: `on_plan` there, more when behind, less when
    ahead.

    Args:
        tokens: length at which the text should be detected, or its budget if that is less.
        on_plan: factor of a text that is on plan.
        gain: increase of the factor per unit of z behind plan.
        most: maximum factor.

    Raises TypeError or ValueError naming the argument.
    """

    tokens: int = 90
    on_plan: float = 0.5
    gain: float = 0.5
    most: float = 1.5

    def __post_init__(self) -> None:
        require_int("tokens", self.tokens, 1, 1 << 24)
        for name in ("on_plan", "gain", "most"):
            require_number(name, getattr(self, name), 0, MAX_FACTOR, closed=True)

    @property
    def max_factor(self) -> float:
        return float(self.most)

    def factor(self, standing: Standing) -> torch.Tensor:
        length = standing.budgets.clamp(1, self.tokens).double()
        planned = standing.needed * ((standing.tokens + EARLY) / length).clamp(max=1).sqrt()
        factor = (self.on_plan + self.gain * (planned - standing.z)).clamp(0, self.most)
        return torch.where(standing.found, 0.0, factor).float()


@dataclass(frozen=True)
class Lagrangian(Deficit):
    """Marks a token where the evidence is worth its cost, for policies that know the importance of tokens.

    A green token a is chosen if lambda > importance (log p(a_0) - log p(a)), with lambda from the deficit. That is a
    strength of lambda / (delta importance): the policy's maximum where the importance is `free` or less, and less the
    greater it is, without a threshold. Races choose among their candidates by the same strength.

    Args:
        free: importance in (0, 1].

    Raises TypeError or ValueError naming the argument.
    """

    free: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("free", self.free, 0, 1, closed=True)
        if self.free == 0:
            raise ValueError("free must be above 0, got 0, which would mark nothing; use 0.2")

    def strength(self, strength: torch.Tensor, capacity: torch.Tensor, greatest: torch.Tensor) -> torch.Tensor:
        return greatest * (self.free / capacity.clamp_min(self.free))


LAWS: dict[str, type[Law]] = {"stop": Stop, "deficit": Deficit, "lagrangian": Lagrangian}


@dataclass(frozen=True)
class Target:
    """The p-value that every text should reach.

    Args:
        p_value: in (0, 1).
        margin: added to the z of the p-value, in [0, 100], to allow for retokenisation and edits.
        law: "stop", "deficit", "lagrangian", or a `Law`.
        weights: token-weight table of the test, or its name or file; None = none.

    Raises TypeError or ValueError naming the argument.
    """

    p_value: float
    margin: float = MARGIN
    law: Law | str = field(default_factory=Stop)
    weights: Any = None

    def __post_init__(self) -> None:
        require_number("target", self.p_value, 0, 1, closed=False)
        require_number("margin", self.margin, 0, 100, closed=True)
        if isinstance(self.law, str) and self.law in LAWS:
            object.__setattr__(self, "law", LAWS[self.law]())
        if not isinstance(self.law, Law):
            raise ValueError(f"law must be one of {', '.join(LAWS)} or a Law, got {shown(self.law)}; use 'stop'")

    @property
    def steering(self) -> Law:
        assert isinstance(self.law, Law)
        return self.law

    @property
    def quantile(self) -> float:
        """The z of the p-value, without the margin."""
        return -NormalDist().inv_cdf(self.p_value)

    def described(self) -> Any:
        """Return the p-value if the rest is default, otherwise everything that differs, for output lines."""
        law, default = self.steering, Target(self.p_value)
        of_law: dict[str, Any] = asdict(law) if is_dataclass(law) else {}
        name = next((name for name, kind in LAWS.items() if type(law) is kind), type(law).__name__)
        said: dict[str, Any] = {"p_value": self.p_value}
        said |= {} if self.margin == default.margin else {"margin": self.margin}
        said |= {} if law == default.law else {"law": {"name": name, **of_law}}
        if self.weights is not None:
            said["weights"] = str(self.weights) if isinstance(self.weights, str | Path) else "a table"
        return self.p_value if len(said) == 1 else said


def read_target(value: Any) -> Target | None:
    """Build a target from a p-value or from a mapping as given by `Target.described`, whose law is a name or a mapping.

    Raises TypeError or ValueError naming the argument.
    """
    if value is None or isinstance(value, Target):
        return value
    if not isinstance(value, Mapping):
        return Target(value)
    law = value.get("law", "stop")
    if isinstance(law, Mapping):
        kind = law.get("name")
        if kind not in LAWS:
            raise ValueError(f"law.name must be one of {', '.join(LAWS)}, got {shown(kind)}; use 'stop'")
        law = _made(LAWS[kind], "law", {name: given for name, given in law.items() if name != "name"})
    return _made(Target, "target", {**value, "law": law})


def _made(kind: Any, what: str, given: Mapping[str, Any]) -> Any:
    known = [field.name for field in fields(kind)]
    for name in given:
        if name not in known:
            raise ValueError(f"{what} has an unknown field {shown(name)}; known: {', '.join(known) or 'none'}")
    if "p_value" in known and "p_value" not in given:
        raise ValueError("target must have p_value, found none; give e.g. p_value: 0.001")
    return kind(**given)


def policy_text(policy: Policy) -> str:
    """Describe a policy with its parameters; files by name only, evaluators without a file by their type."""
    if not is_dataclass(policy):
        return type(policy).__name__
    shown_as: list[str] = []
    for f in fields(policy):
        value = getattr(policy, f.name)
        if not f.init or not f.repr or value is None:
            continue
        if isinstance(value, (str, Path)):
            value = Path(value).name
        elif isinstance(value, Target):
            value = value.described()
        elif not isinstance(value, (int, float)):
            value = type(value).__name__
        shown_as.append(f"{f.name}={value!r}")
    return f"{type(policy).__name__}({', '.join(shown_as)})"
