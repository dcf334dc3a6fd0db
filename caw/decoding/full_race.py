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
from caw.policies.mark import Mark

BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))  # what strength 1 is greater than, and no smaller one


def mark_that_races(main: Mark, other: Mark | None) -> Mark | None:
    """Return the mark that races at full strength among the two of a batch, of which `other` may be None.

    Raises ValueError for another that does not always race: a batch has one policy that decides strengths.
    """
    if other is None:
        return main if main.may_race else None
    if not other.always_races or main.may_race:
        raise ValueError(
            "a batch of two marks has a race at full strength, caw.EXP(strength='scale') under FixedStrength(1.0), "
            f"beside one that does not race, got {other.watermark!r} under {type(other.policy).__name__}; plan two"
        )
    return other


@dataclass
class FullRace:
    """Tells which of B texts race at full strength for their next token.

    whole: bool [B], strength 1. marked: bool [B], of them those that are marked there.
    decided: bool [B], of those the sampled rows whose original token nobody asks for: no noise is drawn for them.
    strength: float32 [B], of the mark that races; NaN in rows of the other.
    """

    whole: torch.Tensor
    marked: torch.Tensor
    decided: torch.Tensor
    strength: torch.Tensor

    @classmethod
    def of(
        cls, strength: torch.Tensor, unmarked: torch.Tensor, sampled: torch.Tensor, *, original_asked: bool
    ) -> FullRace:
        """unmarked: bool [B], contexts after which nothing is marked. sampled: bool [B]."""
        whole = strength == 1
        marked = whole & ~unmarked
        decided = torch.zeros_like(marked) if original_asked else marked & sampled
        return cls(whole, marked, decided, strength)

    def ladder(
        self, original: torch.Tensor, winner: torch.Tensor, otherwise: Ladder | None, others: torch.Tensor
    ) -> Ladder:
        """Build a ladder of the original token int64 [B] and, for strength 1 alone, the winner int64 [B].

        otherwise: the ladder of the others (bool [B]), None = there are none.
        """
        original = torch.where(self.decided, winner, original)
        second = torch.where(self.marked, winner, original)
        counts = 1 + (second != original).long()
        width = 2 if otherwise is None else otherwise.candidates.shape[1]
        more = original[:, None].expand(-1, max(width - 2, 0))
        candidates = torch.cat([original[:, None], second[:, None], more], dim=1)[:, :width]
        needs = torch.full_like(candidates, torch.inf, dtype=torch.float32)
        needs[:, 0], needs[:, 1:2] = -torch.inf, BELOW_ONE
        if otherwise is None:
            return Ladder(candidates, needs, counts, "scale", 1.0)
        rows = others[:, None]
        return dataclasses.replace(
            otherwise,
            candidates=torch.where(rows, otherwise.candidates, candidates),
            needs=torch.where(rows, otherwise.needs, needs),
            counts=torch.where(others, otherwise.counts, counts),
        )
