"""Strength ladders: the distinct tokens that some strength would choose at one position, and when each takes over.

A ladder turns "which strength?" into "which of a few tokens?", so that all of them can be looked through in one
forward pass. Candidate 0 is the original token. How a strength chooses among them: `select_candidate_ref`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from caw.triton_kernels.evaluator_step_ref import select_candidate_ref, takes_over_ref
from caw.triton_kernels.op_indices import RULES, Rule


@dataclass
class Ladder:
    """Candidates of B positions.

    candidates: int64 [B, M], column 0 the original token, distinct per row (but see `layer_ladder`); columns >= counts
        repeat column 0.
    needs: float32 [B, M]: logits (reweight), ranks from 1 (top_k; layers for SynthID) or breakpoints (scale).
    counts: int64 [B], 1..M, how many candidates some strength up to the greatest allowed one reaches.
    full: delta (reweight), top_k (top_k) or 1 (scale): what strength 1 means.
    """

    candidates: torch.Tensor
    needs: torch.Tensor
    counts: torch.Tensor
    rule: Rule
    full: float

    def select(self, strength: torch.Tensor) -> torch.Tensor:
        """Index of the chosen candidate, int64 [B], for strength float32 [B] >= 0; 0 always gives candidate 0."""
        return select_candidate_ref(
            self.candidates, self.needs, self.counts, strength, RULES.index(self.rule), self.full
        )

    def first(self, counts: torch.Tensor) -> Ladder:
        """The same ladder with the first counts[b] candidates (int64 [B], at most those there are)."""
        beyond = torch.arange(self.candidates.shape[1], device=counts.device)[None] >= counts[:, None]
        candidates = torch.where(beyond, self.candidates[:, :1], self.candidates)
        return Ladder(candidates, self.needs, counts, self.rule, self.full)

    def only_original(self, rows: torch.Tensor) -> Ladder:
        """The same ladder with just candidate 0 where `rows` (bool [B]) is true."""
        counts = torch.where(rows, torch.ones_like(self.counts), self.counts)
        candidates = torch.where(rows[:, None], self.candidates[:, :1], self.candidates)
        return Ladder(candidates, self.needs, counts, self.rule, self.full)


def original_only(token: torch.Tensor, width: int, rule: Rule, full: float) -> Ladder:
    """A ladder whose only candidate is `token` [B], `width` columns wide."""
    batch = token.shape[0]
    return Ladder(
        candidates=token[:, None].repeat(1, width),  # never a view: the record it is from changes in place
        needs=torch.zeros(batch, width, device=token.device),
        counts=torch.ones_like(token),
        rule=rule,
        full=full,
    )


def reweight_ladder(
    original: torch.Tensor,
    original_logit: torch.Tensor,
    green: torch.Tensor,
    green_logit: torch.Tensor,
    delta: float,
    max_strength: float,
) -> Ladder:
    """Two rungs: the likeliest token and the likeliest green one, both [B] (green == original: one rung).

    `green` < 0 says that no green token can be reached.
    """
    two = torch.stack([original, torch.where(green >= 0, green, original)], dim=1)
    needs = torch.stack([original_logit, torch.where(green >= 0, green_logit, original_logit)], dim=1).float()
    limit = torch.full_like(original_logit, max_strength, dtype=torch.float32)
    reached = (
        takes_over_ref(two, needs, limit, RULES.index("reweight"), delta)[:, 1] & (green >= 0) & (green != original)
    )
    candidates = torch.where(reached[:, None], two, two[:, :1])
    return Ladder(candidates, needs, 1 + reached.long(), "reweight", delta)


def reach(size: int, full: float, max_strength: float) -> int:
    """How many of `size` ranks (layers) a strength reaches: rank r needs 2 * strength * full > 2 r - 1 in float32."""
    # NumPy: under a fake mode the value of a tensor would be unknown
    twice = 2 * np.float32(max_strength) * np.float32(full)
    return int((twice > 2 * np.arange(1, size + 1, dtype=np.float32) - 1).sum())


def race_ladder_top_k(ids: torch.Tensor, race: torch.Tensor, top_k: int, max_strength: float) -> Ladder:
    """Records of a running argmax: winner k races among the k first of `ids` [B, K]; `race` float64 [B, K], -inf = out.

    Only ranks that `max_strength` can reach are looked at. Ties go to the smaller id. Width M = reachable ranks.
    """
    width = max(1, reach(ids.shape[1], top_k, max_strength))
    ranks = torch.arange(1, width + 1, dtype=torch.float32, device=ids.device)
    ids, race = ids[:, :width], race[:, :width]
    beats = (race[:, :, None] > race[:, None, :]) | (
        (race[:, :, None] == race[:, None, :]) & (ids[:, :, None] < ids[:, None, :])
    )
    earlier = torch.ones(width, width, dtype=torch.bool, device=ids.device).tril(-1)
    is_record = (beats | ~earlier).all(dim=-1) & (race > -torch.inf)
    is_record[:, 0] = True
    return _compact(ids, ranks.expand_as(race), is_record, "top_k", float(top_k))


def race_ladder_scale(ids: torch.Tensor, start: torch.Tensor, slope: torch.Tensor, max_strength: float) -> Ladder:
    """Upper envelope on (0, max_strength] of the lines start + strength * slope, float64 [B, K] (-inf start = out).

    Column 0 of `ids` must be the winner at strength 0. Where several lines meet, the steepest goes on, then the
    smaller id. Needs are breakpoints rounded to float32 so that `strength > need` is exact for float32 strengths.
    """
    batch = ids.shape[0]
    current = torch.zeros(batch, 1, dtype=torch.int64, device=ids.device)
    rungs, needs = [current], [torch.full((batch, 1), -torch.inf, dtype=torch.float32, device=ids.device)]
    at = torch.zeros(batch, 1, dtype=torch.float64, device=ids.device)
    while True:
        rise = slope - slope.gather(1, current)
        crossing = (start.gather(1, current) - start) / rise
        # a line through the current one at an earlier strength than `at` was already passed: clamp, never go back
        crossing = torch.where((rise > 0) & (start > -torch.inf), crossing.clamp_min(0), torch.inf)
        crossing = torch.maximum(crossing, at)
        nearest = crossing.min(dim=1, keepdim=True).values
        follower = _steepest(ids, slope, crossing == nearest)
        smaller = ids.gather(1, follower) < ids.gather(1, current)
        need = torch.where(smaller, _below(_ceil32(nearest)), _floor32(nearest))
        reached = need < max_strength
        if not bool(reached.any()):
            break
        current = torch.where(reached, follower, current)
        at = torch.where(reached, nearest, at)
        rungs.append(current)
        needs.append(torch.where(reached, need, torch.inf))
    index = torch.cat(rungs, dim=1)
    need32 = torch.cat(needs, dim=1)
    is_rung = need32 < torch.inf
    return _compact(ids.gather(1, index), need32, is_rung, "scale", 1.0)


def layer_ladder(winners: torch.Tensor, full: float) -> Ladder:
    """Rungs where the winner changes: winners int64 [B, M + 1] after 0, 1, ..., M of `full` layers.

    A token may come back after another one won in between; it is then a rung of its own.
    """
    layers = torch.arange(winners.shape[1], dtype=torch.float32, device=winners.device).expand(winners.shape)
    changes = torch.ones_like(winners, dtype=torch.bool)
    changes[:, 1:] = winners[:, 1:] != winners[:, :-1]
    return _compact(winners, layers, changes, "top_k", full)


def _steepest(ids: torch.Tensor, slope: torch.Tensor, among: torch.Tensor) -> torch.Tensor:
    """Column [B, 1] of the greatest slope among the marked ones, ties to the smaller id."""
    best = torch.where(among, slope, -torch.inf).max(dim=1, keepdim=True).values
    tied = among & (slope == best)
    return torch.where(tied, ids, torch.iinfo(torch.int64).max).argmin(dim=1, keepdim=True)


def _compact(ids: torch.Tensor, needs: torch.Tensor, keep: torch.Tensor, rule: Rule, full: float) -> Ladder:
    """Move the kept columns to the front, in order; fill the rest with candidate 0."""
    slot = keep.long().cumsum(dim=1) - 1
    width = ids.shape[1]
    slot = torch.where(keep, slot, width)  # dropped columns land in a spare one
    candidates = ids[:, :1].repeat(1, width + 1).scatter(1, slot, ids)[:, :width]
    packed = torch.full((ids.shape[0], width + 1), torch.inf, device=ids.device)
    packed = packed.scatter(1, slot, needs.to(torch.float32))[:, :width]
    return Ladder(candidates, packed, keep.sum(dim=1), rule, full)


def _floor32(x: torch.Tensor) -> torch.Tensor:
    """The greatest float32 <= x (float64)."""
    y = x.float()
    return torch.where(y.double() > x, _below(y), y)


def _ceil32(x: torch.Tensor) -> torch.Tensor:
    y = x.float()
    return torch.where(y.double() < x, torch.nextafter(y, torch.full_like(y, torch.inf)), y)


def _below(x: torch.Tensor) -> torch.Tensor:
    return torch.nextafter(x, torch.full_like(x, -torch.inf))
