"""Reference of `select_candidate`: which rung of a strength ladder a strength chooses.

    reweight  candidate 1 iff fl32(l_1 + fl32(strength * delta)) > l_0, or equal and its id is smaller
    top_k     candidate j iff 2 * strength * top_k > 2 * rank_j - 1
    scale     candidate j iff strength > breakpoint_j

Paper, appendix "Mechanisms of Contextual Generation States-Aware Watermarking" (delta' and K'); exact, ties included.
"""

from __future__ import annotations

import torch

RULES = ("reweight", "top_k", "scale")  # an op takes the index


def takes_over_ref(
    candidates: torch.Tensor, needs: torch.Tensor, strength: torch.Tensor, rule: int, full: float
) -> torch.Tensor:
    """bool [B, M]: whether the strength (float32 [B]) reaches each rung; their number is the choice."""
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
    return (takes_over_ref(candidates, needs, strength.float(), rule, full) & reached)[:, 1:].sum(dim=1)
