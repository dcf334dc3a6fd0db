"""Races at full strength (`caw.EXP(strength="scale")`): one winner among all tokens that the sampler keeps.

At strength 1 keyed noise takes the place of the sampling noise: over keys the token is drawn from the model's own
distribution, all of it, where a ladder knows the 100 tokens of a record. Where the race decides alone the sampler draws
nothing, and the token is its own original one. A context seen before is left to the sampler.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import torch

from caw.decoding.plan import Plan
from caw.decoding.row_marks import of_kind, seen_by, winner_of_each, within
from caw.decoding.texts import Texts
from caw.ladder import Ladder
from caw.record import Record
from caw.watermarks import Position, Watermark

BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))  # what strength 1 is greater than, and no smaller one
LEAST_LIKELY = math.log(100)  # nats below the likeliest token, within which another one is a choice


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
    ) -> "FullRace":
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


def full_race(
    plan: Plan, mark: Watermark, texts: Texts, strength: torch.Tensor, context: torch.Tensor,
    repeats: torch.Tensor | None,
) -> FullRace:  # fmt: skip
    """Find the texts that race at full strength after contexts int64 [B, W].

    strength: float32 [B]. repeats: contexts that the watermark whose ladder stands beside the race does not mark again.
    """
    repeats = texts.repeats(mark, context) if plan.mixed else repeats
    unmarked = ~mark.markable(within(mark, context))
    for left in (repeats, texts.in_beginning() if plan.begins_freely else None):
        unmarked = unmarked if left is None else unmarked | left
    # another mark's target and end tokens say nothing of a race
    strength = torch.where(texts.races, strength, torch.nan) if plan.mixed else strength
    asked = not plan.mixed and (plan.loop is not None or (bool(plan.limits.ends) and not plan.mark_eos))
    return FullRace.of(strength, unmarked, texts.sampled, original_asked=asked)


def winners(plan: Plan, race: Watermark, texts: Texts, position: Position, rows: torch.Tensor) -> torch.Tensor:
    """Winners of the races in these rows (bool [B]), int64 [B]; in others any token."""
    native = plan.kernels.native
    if plan.captured:
        return race.whole_winner(seen_by(race, position), native=native)
    tokens, places = torch.zeros_like(texts.counts), rows.nonzero()[:, 0]
    if places.numel():
        position = seen_by(race, position if places.numel() == rows.shape[0] else position.take(places))
        apart = race.native is None and plan.limits.keys
        marks = of_kind(race, [texts.marks[place] for place in places.tolist()]) if apart else [race]
        tokens[places] = winner_of_each(marks, position, native=native)
    return tokens


def free_draws(
    record: Record, mass: Record, warped: torch.Tensor, beginning: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what texts draw in their free beginnings, `Choosing.drawn_free`: of the tokens that lead a record of drawn
    scores, under logits `warped` float32 [B, V] with the record `mass`.

    beginning: bool [B]; a text whose mark is switched off, as within an exempt section, has not begun yet.
    """
    tokens = record.ids[:, 0]
    nats = mass.logsumexp.double() - warped.gather(1, tokens[:, None])[:, 0].double()
    return tokens, nats.clamp_min(0), beginning


def open_positions(plan: Plan, texts: Texts, likeliest: torch.Tensor) -> torch.Tensor:
    """Tell where the mark is on and has a choice, bool [B]: the second of the `likeliest` logits (float32 [B, N], as
    the sampler takes them, descending) is at least a hundredth as likely as the first, and within the bonus of the
    mark's own strength.

    Whoever allows one token, or biases it beyond all others, leaves none, whatever was drawn.
    """
    reach = LEAST_LIKELY
    if plan.watermark is not None and plan.watermark.rule == "reweight":
        reach = min(reach, plan.policy.max_strength * plan.watermark.full)
    least = likeliest[:, 0] - reach
    if plan.mixed:
        least = torch.where(texts.races, least + (reach - LEAST_LIKELY), least)
    several = (likeliest[:, 1] >= least) & (texts.row_factors > 0)
    return several & ~texts.in_beginning() if plan.begins_freely else several
