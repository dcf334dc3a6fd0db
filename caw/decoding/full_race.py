"""Which marks race at full strength (`caw.EXP(strength="scale")`), and what does not go together with that."""

from __future__ import annotations

from caw.policies import FixedStrength, Policy
from caw.policies.base import Mark
from caw.watermarks import EXP, Watermark


def runs_full_race(watermark: Watermark | None, policy: Policy | None) -> bool:
    """Tell whether the tokens that the policy (None = the plain watermark) marks race at full strength."""
    policy = FixedStrength(1.0) if policy is None else policy
    return may_race(watermark, policy) and policy.max_strength == 1


def may_race(watermark: Watermark | None, policy: Policy) -> bool:
    """Tell whether a token of strength 1 races at full strength: policies that read capacities use the ladder."""
    return watermark is not None and watermark.races_whole and not policy.reads_capacity


def only_races(watermark: Watermark | None, policy: Policy) -> bool:
    """Tell whether the policy gives every token strength 1, by its exact type: a subclass may decide otherwise."""
    return runs_full_race(watermark, policy) and type(policy) is FixedStrength and policy.target is None


def mark_that_races(watermark: Watermark | None, policy: Policy, other: Mark | None) -> Mark | None:
    """Return the mark that races at full strength among the two of a batch, of which `other` may be None.

    Raises ValueError for another that does not always race: a batch has one policy that decides strengths.
    """
    if other is None:
        return Mark(watermark, policy) if watermark is not None and may_race(watermark, policy) else None
    if not only_races(*other) or may_race(watermark, policy):
        raise ValueError(
            "a batch of two marks has a race at full strength, caw.EXP(strength='scale') under FixedStrength(1.0), "
            f"beside one that does not race, got {other.watermark.name} under {type(other.policy).__name__}; plan two"
        )
    return other


def check_untargeted(watermark: Watermark | None, policy: Policy) -> None:
    """Raise ValueError for a race at full strength with a target: any other strength would distort."""
    if runs_full_race(watermark, policy) and policy.target is not None:
        raise ValueError(
            "a race at full strength marks every token and costs nothing, so it takes no target, got one in "
            f"{type(policy).__name__}; leave target out, or give EXP strength='top_k'"
        )


def check_beginning(watermark: Watermark | None, policy: Policy | None, *, sampled: bool) -> None:
    """Raise ValueError for nats of a free beginning where there can be none."""
    if not isinstance(watermark, EXP) or not watermark.free:
        return
    why = (
        "a text that is not sampled" if not sampled
        else "a policy that does not race at full strength" if not runs_full_race(watermark, policy)
        else "this strength, format or payload" if not watermark.may_begin_freely
        else ""
    )  # fmt: skip
    if why:
        raise ValueError(
            f"a free beginning needs sampled text and EXP(strength='scale') at full strength in its native format, got "
            f"free={watermark.free:g} with {why}; leave free out"
        )


def check_factor(watermark: Watermark | None, policy: Policy, factor: float) -> None:
    """Raise ValueError for a text that would race at less than full strength; factor 0 leaves it unmarked."""
    if runs_full_race(watermark, policy) and factor not in (0, 1):
        raise ValueError(
            f"a race at full strength has strength_factor 1, or 0 for an unmarked text, got {factor:g}; leave it out, "
            "or give EXP strength='top_k'"
        )
