"""Races at full strength (`caw.EXP(strength="scale")`): one winner among all tokens that the sampler keeps.

At strength 1 keyed noise takes the place of the sampling noise: over keys the token is drawn from the model's own
distribution, all of it, where a ladder knows the 100 tokens of a record. Where the race decides alone the sampler draws
nothing, and the token is its own original one. A context seen before is left to the sampler.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch

from caw.ladder import Ladder
from caw.policies import FixedStrength, Policy
from caw.policies.base import Mark
from caw.watermarks import EXP, Watermark

BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))  # what strength 1 is greater than, and no smaller one


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


@dataclass
class FullRace:
    """Tells which of B texts race at full strength for their next token.

    whole: bool [B], strength 1. marked: bool [B], of them those that are marked there.
    decided: bool [B], of those the sampled rows whose original token nobody asks for: no noise is drawn for them.
    laddered: bool [B], rows that a ladder gives their candidates.
    """

    whole: torch.Tensor
    marked: torch.Tensor
    decided: torch.Tensor
    laddered: torch.Tensor

    @classmethod
    def of(
        cls, strength: torch.Tensor, unmarked: torch.Tensor, sampled: torch.Tensor, *, original_asked: bool, idle: bool
    ) -> FullRace:
        """strength: float32 [B], of the mark that races; NaN in rows of the other. unmarked: bool [B], contexts after
        which nothing is marked. sampled: bool [B]. idle: whether rows of strength 0 do without a ladder.
        """
        whole = strength == 1
        marked = whole & ~unmarked
        decided = torch.zeros_like(marked) if original_asked else marked & sampled
        return cls(whole, marked, decided, ~(whole | (strength == 0)) if idle else ~whole)

    def ladder(self, original: torch.Tensor, winner: torch.Tensor, otherwise: Ladder | None) -> Ladder:
        """Build a ladder of the original token int64 [B] and, for strength 1 alone, the winner int64 [B].

        otherwise: the ladder of the other texts; None = there are none.
        """
        original = torch.where(self.decided, winner, original)
        second = torch.where(self.marked, winner, original)
        counts = 1 + (second != original).long()
        width = 2 if otherwise is None else otherwise.candidates.shape[1]
        candidates = torch.stack([original, second] + [original] * (width - 2), dim=1)[:, :width]
        needs = torch.full_like(candidates, torch.inf, dtype=torch.float32)
        needs[:, 0], needs[:, 1:2] = -torch.inf, BELOW_ONE
        if otherwise is None:
            return Ladder(candidates, needs, counts, "scale", 1.0)
        rows = self.laddered[:, None]
        return dataclasses.replace(
            otherwise,
            candidates=torch.where(rows, otherwise.candidates, candidates),
            needs=torch.where(rows, otherwise.needs, needs),
            counts=torch.where(self.laddered, otherwise.counts, counts),
        )
