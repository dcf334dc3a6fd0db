"""Reference of `race_ladder`: the ladder of each row of a race whose values are known, in plain PyTorch."""

from __future__ import annotations

import torch

from caw import ladder as ladders


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
        found = ladders.race_ladder_top_k(ids, race, int(full), max_strength)
        return found.candidates.contiguous(), found.needs.contiguous(), found.counts
    start = values.double()
    slope = torch.where(race > -torch.inf, race - start, -torch.inf)
    found = ladders.race_ladder_scale(ids, start, slope, max_strength)
    missing = ids.shape[1] - found.candidates.shape[1]
    candidates = torch.cat([found.candidates, ids[:, :1].expand(-1, missing)], dim=1)
    return candidates, torch.nn.functional.pad(found.needs, (0, missing), value=torch.inf), found.counts
