"""What marks a text: a watermark under its key, and a policy; and what a pair that races at full strength rules out."""

from typing import Any, NamedTuple

from caw.io.show import kind_of
from caw.policies.base import Policy
from caw.policies.fixed import FixedStrength
from caw.watermarks import EXP, Signature, Watermark


def check_kinds(watermark: Any, policy: Any = None) -> None:
    """Raise TypeError for what is no watermark or no policy; both may be None."""
    if not isinstance(watermark, Signature | None):
        raise TypeError(
            f"watermark must be a caw watermark or None, got {kind_of(watermark)}; use e.g. caw.KGW(key=42)"
        )
    if not isinstance(policy, Policy | None):
        raise TypeError(f"policy must be a caw policy, got {kind_of(policy)}; use e.g. caw.FixedStrength(1.0)")


class Mark(NamedTuple):
    """watermark: None = nothing marks."""

    watermark: Watermark | None
    policy: Policy

    @property
    def may_race(self) -> bool:
        """Whether a token of strength 1 races at full strength: policies that read capacities use the ladder."""
        return self.watermark is not None and self.watermark.races_whole and not self.policy.reads_capacity

    @property
    def races(self) -> bool:
        """Whether the tokens that the policy marks race at full strength."""
        return self.may_race and self.policy.max_strength == 1

    @property
    def always_races(self) -> bool:
        """Whether the policy gives every token strength 1, by its exact type: a subclass may decide otherwise."""
        return self.races and type(self.policy) is FixedStrength and self.policy.target is None

    def check_target(self) -> None:
        """Raise ValueError for a race at full strength with a target: any other strength would distort."""
        if self.races and self.policy.target is not None:
            raise ValueError(
                "a race at full strength marks every token and costs nothing, so it takes no target, got one in "
                f"{type(self.policy).__name__}; leave target out, or give EXP strength='top_k'"
            )

    def check_beginning(self, *, sampled: bool) -> None:
        """Raise ValueError for nats of a free beginning where there can be none."""
        if not isinstance(self.watermark, EXP) or not self.watermark.free:
            return
        why = (
            "a text that is not sampled" if not sampled
            else "a policy that does not race at full strength" if not self.races
            else "this strength, format or payload" if not self.watermark.may_begin_freely
            else ""
        )  # fmt: skip
        if why:
            raise ValueError(
                "a free beginning needs sampled text and EXP(strength='scale') at full strength in its native format, "
                f"got free={self.watermark.free:g} with {why}; leave free out"
            )

    def check_factor(self, factor: float) -> None:
        """Raise ValueError for a text that would race at less than full strength; factor 0 leaves it unmarked."""
        if self.races and factor not in (0, 1):
            raise ValueError(
                f"a race at full strength has strength_factor 1, or 0 for an unmarked text, got {factor:g}; leave it "
                "out, or give EXP strength='top_k'"
            )
