"""Strength ladders: the distinct tokens that some strength would choose at a position, and where each takes over.

A ladder reduces "which strength?" to "which of a few tokens?", so one forward pass can look ahead at all of them.
Candidate 0 is the original token. A strength selects the last rung that it reaches (`takes_over`):

    reweight  candidate 1 iff fl32(l_1 + fl32(strength * delta)) > l_0, or equal and its id is smaller
    top_k     candidate j iff 2 * strength * top_k > 2 * rank_j - 1
    scale     candidate j iff strength > breakpoint_j

Exact, ties included. Kirchenbauer et al. 2023, Algorithm 2 (reweight); Aaronson 2022 (top_k, scale).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from caw import prf
from caw.arrays import torch
from caw.op_indices import RACE_SCALE, RACE_TOP_K, RULES, Rule

BEHIND = 1 << 31  # beyond every token id


@dataclass
class Ladder:
    """Candidates of B positions.

    candidates: int64 [B, M], column 0 the original token, distinct per row (but see `layer_ladder`); columns >= counts
        repeat column 0.
    needs: float32 [B, M]: logits (reweight), ranks from 1 (top_k; layers for SynthID) or breakpoints (scale).
    counts: int64 [B], 1..M, number of candidates within reach of the maximum strength.
    full: delta (reweight), top_k (top_k) or 1 (scale): the value of strength 1.
    """

    candidates: torch.Tensor
    needs: torch.Tensor
    counts: torch.Tensor
    rule: Rule
    full: float

    def select(self, strength: torch.Tensor) -> torch.Tensor:
        """Return the chosen candidate's index, int64 [B], for strength float32 [B] >= 0; 0 always gives candidate 0."""
        return select_candidate_ref(
            self.candidates, self.needs, self.counts, strength, RULES.index(self.rule), self.full
        )

    def first(self, counts: torch.Tensor) -> Ladder:
        """Return the ladder of the first counts[b] candidates (int64 [B], at most the existing ones)."""
        beyond = torch.arange(self.candidates.shape[1], device=counts.device)[None] >= counts[:, None]
        candidates = torch.where(beyond, self.candidates[:, :1], self.candidates)
        return Ladder(candidates, self.needs, counts, self.rule, self.full)

    def only_original(self, rows: torch.Tensor) -> Ladder:
        """Return the ladder with only candidate 0 where `rows` (bool [B]) is true."""
        counts = torch.where(rows, torch.ones_like(self.counts), self.counts)
        candidates = torch.where(rows[:, None], self.candidates[:, :1], self.candidates)
        return Ladder(candidates, self.needs, counts, self.rule, self.full)

    def forced(self, tokens: torch.Tensor) -> Ladder:
        """Return the ladder with `tokens` (int64 [B]) as the only candidate where they are not -1."""
        rows = tokens >= 0
        candidates = torch.where(rows[:, None], tokens[:, None], self.candidates)
        return Ladder(candidates, self.needs, torch.where(rows, 1, self.counts), self.rule, self.full)


def takes_over(
    candidates: torch.Tensor, needs: torch.Tensor, strength: torch.Tensor, rule: int, full: float
) -> torch.Tensor:
    """Return bool [B, M]: which rungs the strength (float32 [B]) reaches. The number of true ones is the choice."""
    s = strength[:, None]
    if RULES[rule] == "reweight":
        boosted = needs + s * full
        smaller_id = candidates < candidates[:, :1]
        return (boosted > needs[:, :1]) | ((boosted == needs[:, :1]) & smaller_id)
    if RULES[rule] == "top_k":
        return 2 * s * full > 2 * needs - 1
    return s > needs


def select_candidate_ref(
    candidates: torch.Tensor, needs: torch.Tensor, counts: torch.Tensor, strength: torch.Tensor, rule: int, full: float
) -> torch.Tensor:
    """Index of the chosen candidate.

    Args:
        candidates: int64 [B, M]. needs: float32 [B, M]. counts: int64 [B], valid rungs. strength: float32 [B] >= 0.
        rule: index into RULES. full: delta, top_k or 1.

    Returns:
        int64 [B] in [0, counts); strength 0 gives 0.
    """
    reached = torch.arange(needs.shape[1], device=needs.device)[None] < counts[:, None]
    return (takes_over(candidates, needs, strength.float(), rule, full) & reached)[:, 1:].sum(dim=1)


def original_only(token: torch.Tensor, width: int, rule: Rule, full: float) -> Ladder:
    """Return a ladder whose only candidate is `token` [B], `width` columns wide."""
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
    """Build two rungs [B]: the likeliest token and the likeliest green one (equal: one rung; < 0: none in reach)."""
    two = torch.stack([original, torch.where(green >= 0, green, original)], dim=1)
    needs = torch.stack([original_logit, torch.where(green >= 0, green_logit, original_logit)], dim=1).float()
    limit = torch.full_like(original_logit, max_strength, dtype=torch.float32)
    reached = takes_over(two, needs, limit, RULES.index("reweight"), delta)[:, 1] & (green >= 0) & (green != original)
    candidates = torch.where(reached[:, None], two, two[:, :1])
    return Ladder(candidates, needs, 1 + reached.long(), "reweight", delta)


def first_green(ids: torch.Tensor, values: torch.Tensor, green: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first green (bool [B, N]) of ids int64 [B, N] and its value float32 [B]; -1 and -inf for none."""
    found, column = green.any(dim=1), green.int().argmax(dim=1, keepdim=True)
    token = torch.where(found, ids.gather(1, column)[:, 0], -1)
    return token, torch.where(found, values.gather(1, column)[:, 0], -torch.inf)


def greatest_green(scores: torch.Tensor, green: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the green token (bool [B, V]) of greatest score (float32 [B, V]), ties to the smaller id; -1 for none."""
    masked = torch.where(green, scores, -torch.inf)
    best = masked.max(dim=1, keepdim=True).values
    token = (green & (masked == best)).int().argmax(dim=1)
    return torch.where(best[:, 0] > -torch.inf, token, -1), best[:, 0]


def may_win_beyond(values: torch.Tensor, delta: float, max_strength: float) -> torch.Tensor:
    """Whether a token just below a record (float32 [B, K], the greatest first) could win if it were green, bool [B]."""
    last = values[:, -1]
    return (last > -torch.inf) & (last + torch.full_like(last, max_strength) * delta >= values[:, 0])


class Carried(NamedTuple):
    """Which tokens of B ladders a forward carries, in which order.

    tokens: int64 [B, Q], column 0 the original token; columns >= counts repeat column 0. counts: int64 [B].
    places: int64 [B, M], the column of each rung's token, Q or more for one that is not carried; None = rung j's is
        column j. several: whether any text may need more than one of them.
    """

    tokens: torch.Tensor
    counts: torch.Tensor
    places: torch.Tensor | None = None
    several: bool = True


def likeliest_first(ladder: Ladder, counts: torch.Tensor, max_strength: float) -> Carried:
    """Return each token of the first counts[b] rungs once: the original, then by the strengths that choose it.

    For the rule top_k, whose tokens may win, lose and win again. The token that the longest part of [0, max_strength]
    chooses comes first, of equal ones the one that wins first. Reads back.
    """
    tops = [2 * max_strength * ladder.full]
    tokens, places = [], []
    for own, needs, count in zip(ladder.candidates.tolist(), ladder.needs.tolist(), counts.tolist(), strict=True):
        share = dict.fromkeys(own[:count], 0.0)
        starts = [max(0.0, 2 * rank - 1) for rank in needs[:count]] + tops
        for j in range(count):
            share[own[j]] += starts[j + 1] - starts[j]
        others = sorted((token for token in share if token != own[0]), key=share.__getitem__, reverse=True)
        order = [own[0], *others]
        at = {token: place for place, token in enumerate(order)}
        tokens.append(order)
        places.append([at.get(token, 0) for token in own])
    width = max(map(len, tokens), default=1)
    filled = [order + order[:1] * (width - len(order)) for order in tokens]
    shape = ladder.candidates.new_tensor
    return Carried(
        shape(filled).view(-1, width), shape([len(order) for order in tokens]), shape(places).view_as(ladder.candidates)
    )


def reach(size: int, full: float, max_strength: float) -> int:
    """Return how many of `size` ranks a strength reaches: rank r needs 2 * strength * full > 2 r - 1 in float32."""
    # NumPy: under a fake mode the value of a tensor would be unknown
    twice = 2 * np.float32(max_strength) * np.float32(full)
    return int((twice > 2 * np.arange(1, size + 1, dtype=np.float32) - 1).sum())


def race_width(size: int, full: float, max_strength: float, *, scale: bool) -> int:
    """Return M of a ladder over K = `size` entries: the ranks that `max_strength` reaches; all for a race by scale."""
    return size if scale else max(1, reach(size, full, max_strength))


def rungs(size: int, scheme: int, full: float, max_strength: float) -> int:
    """Return the width M of a ladder over K = `size` entries."""
    if scheme not in (RACE_TOP_K, RACE_SCALE):
        return 2
    return race_width(size, full, max_strength, scale=scheme == RACE_SCALE)


def race_ladder_top_k(ids: torch.Tensor, race: torch.Tensor, top_k: int, max_strength: float) -> Ladder:
    """Build the ladder of a running argmax: winner k races among the first k of `ids` [B, K]; `race` float64 [B, K],
    -inf = out.

    Only ranks within reach of `max_strength` are considered. Ties go to the smaller id. Width M = ranks within reach.
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
    """Build the upper envelope on (0, max_strength] of the lines start + strength * slope, float64 [B, K] (-inf start =
    out).

    Column 0 of `ids` must be the winner at strength 0. Where several lines meet, the steepest continues, then the
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


def race_ladder_ref(
    values: torch.Tensor, ids: torch.Tensor, race: torch.Tensor, full: float, max_strength: float, scale: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Candidates int64 [B, M], needs float32 [B, M], counts int64 [B], as `caw.ladder.Ladder` has them.

    Args:
        values: float32 [B, K], ids: int64 [B, K]: record of the logits the choice is made from.
        race: float64 [B, K], race values of ids; -inf = not in the race.
        full: top_k, or 1 for a race by scale. max_strength: as in `ladder`. scale: which of the two.

    M is `race_width`; columns from counts on repeat the original token. Ties go to the smaller id.
    """
    if not scale:
        found = race_ladder_top_k(ids, race, int(full), max_strength)
        return found.candidates.contiguous(), found.needs.contiguous(), found.counts
    start = values.double()
    slope = torch.where(race > -torch.inf, race - start, -torch.inf)
    found = race_ladder_scale(ids, start, slope, max_strength)
    missing = ids.shape[1] - found.candidates.shape[1]
    candidates = torch.cat([found.candidates, ids[:, :1].expand(-1, missing)], dim=1)
    return candidates, torch.nn.functional.pad(found.needs, (0, missing), value=torch.inf), found.counts


def layer_ladder(winners: torch.Tensor, full: float) -> Ladder:
    """Build rungs where winners int64 [B, M + 1] after 0, ..., M of `full` layers change; a token may have several."""
    layers = torch.arange(winners.shape[1], dtype=torch.float32, device=winners.device).expand(winners.shape)
    changes = torch.ones_like(winners, dtype=torch.bool)
    changes[:, 1:] = winners[:, 1:] != winners[:, :-1]
    return _compact(winners, layers, changes, "top_k", full)


def _steepest(ids: torch.Tensor, slope: torch.Tensor, among: torch.Tensor) -> torch.Tensor:
    """Return the column [B, 1] of the greatest slope among the marked ones, ties to the smaller id."""
    best = torch.where(among, slope, -torch.inf).max(dim=1, keepdim=True).values
    tied = among & (slope == best)
    return torch.where(tied, ids, torch.iinfo(torch.int64).max).argmin(dim=1, keepdim=True)


def _compact(ids: torch.Tensor, needs: torch.Tensor, keep: torch.Tensor, rule: Rule, full: float) -> Ladder:
    """Move the selected columns to the front, in order; fill the rest with candidate 0."""
    slot = keep.long().cumsum(dim=1) - 1
    width = ids.shape[1]
    slot = torch.where(keep, slot, width)  # dropped columns land in a spare one
    candidates = ids[:, :1].repeat(1, width + 1).scatter(1, slot, ids)[:, :width]
    packed = torch.full((ids.shape[0], width + 1), torch.inf, device=ids.device)
    packed = packed.scatter(1, slot, needs.to(torch.float32))[:, :width]
    return Ladder(candidates, packed, keep.sum(dim=1), rule, full)


def _floor32(x: torch.Tensor) -> torch.Tensor:
    """Return the greatest float32 <= x (float64)."""
    y = x.float()
    return torch.where(y.double() > x, _below(y), y)


def _ceil32(x: torch.Tensor) -> torch.Tensor:
    y = x.float()
    return torch.where(y.double() < x, torch.nextafter(y, torch.full_like(y, torch.inf)), y)


def _below(x: torch.Tensor) -> torch.Tensor:
    return torch.nextafter(x, torch.full_like(x, -torch.inf))


def race_winner_ref(
    logits: torch.Tensor, context: torch.Tensor, key: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Token int64 [B] of the greatest logit / temperature - log(-log F), in float64; ties to the smaller id.

    Args:
        logits: float32 [B, V]; -inf and NaN do not race. context: int64 [B, W], -1 = no token.
        key: int64 [B], the 64 bits of each row's key. temperature: above 0.

    Over keys the winner is drawn from softmax(logits / temperature). 0 for a row in which nobody races.
    """
    noise = prf.gumbel(prf.vocabulary_words(key[:, None], context, logits.shape[1]))
    race = torch.where(logits > -torch.inf, logits.double() / temperature + noise, -torch.inf)
    return first_of(race, torch.arange(logits.shape[1], device=logits.device).expand_as(race))


def first_of(race: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The token int64 [B] of the greatest race value float64 [B, N], ties to the smaller id; 0 if all are -inf."""
    best = race.amax(dim=1, keepdim=True)
    winner = torch.where(race == best, tokens, BEHIND).amin(dim=1)
    return torch.where(best[:, 0] > -torch.inf, winner, 0)
