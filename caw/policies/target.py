"""Targets: the p-value that a finished text should reach.

The generator holds the key, so it knows the score of the text it writes (`caw.decoding.evidence`): once the text would
be detected, marking rests. The decision is the detector's, on the finished text: some texts are tokenised differently
from how they were written, and readers edit them. A margin leaves room for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from caw.checks import require_number
from caw.io.show import shown

if TYPE_CHECKING:
    from caw.policies.base import Policy

# plus the 2.33 of p = 1 %, this is about the z of 3 at which marking stopped in a trial of 400 questions (KGW under
# CAW): 92.5 % of the texts detected, 3.0 points below the accuracy of unmarked ones; without a stop 95.5 %, 5.5 below
MARGIN = 0.6


@dataclass(frozen=True)
class Target:
    """The p-value that every text should reach.

    Args:
        p_value: in (0, 1).
        margin: added to the z of the p-value, in [0, 100], to allow for retokenisation and edits.
        weights: token-weight table of the test, or its name or file; None = none.

    Raises TypeError or ValueError naming the argument.
    """

    p_value: float
    margin: float = MARGIN
    weights: Any = None

    def __post_init__(self) -> None:
        require_number("target", self.p_value, 0, 1, closed=False)
        require_number("margin", self.margin, 0, 100, closed=True)

    @property
    def quantile(self) -> float:
        """The z of the p-value, without the margin."""
        return -NormalDist().inv_cdf(self.p_value)

    def described(self) -> Any:
        """Return the p-value if the rest is default, otherwise everything that differs, for output lines."""
        differing: dict[str, Any] = {} if self.margin == MARGIN else {"margin": self.margin}
        if self.weights is not None:
            differing["weights"] = str(self.weights) if isinstance(self.weights, str | Path) else "a table"
        return {"p_value": self.p_value, **differing} if differing else self.p_value


def read_target(value: Any) -> Target | None:
    """Build a target from a p-value or a `Target.described` mapping. TypeError or ValueError names the argument."""
    if value is None or isinstance(value, Target):
        return value
    if not isinstance(value, Mapping):
        return Target(value)
    known = [field.name for field in fields(Target)]
    for name in value:
        if name not in known:
            raise ValueError(f"target has an unknown field {shown(name)}; known: {', '.join(known)}")
    if "p_value" not in value:
        raise ValueError("target must have p_value, found none; give e.g. p_value: 0.001")
    return Target(**value)


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
