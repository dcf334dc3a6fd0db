"""References of `evaluator_step` and of its parts: records -> features -> capacity -> strength -> chosen candidate.

capacity = sigmoid(W3 relu(W2 relu(W1 (x - mean) / scale + b1) + b2) + b3)          (paper, equation 1)
strength = factor beta max(0, (theta - capacity) / theta)                           (paper, delta' and K')
choice   = how many rungs of the ladder beyond the first the strength reaches
    reweight  candidate 1 iff fl32(l_1 + fl32(strength * delta)) > l_0, or equal and its id is smaller
    top_k     candidate j iff 2 * strength * top_k > 2 * rank_j - 1
    scale     candidate j iff strength > breakpoint_j

Paper: appendix "Mechanisms of Contextual Generation States-Aware Watermarking". The choice is exact, ties included.
Training, policies and ladders use these same functions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from caw.triton_kernels.op_indices import RULES, TRANSFORMS
from torch.nn.functional import linear

PROBABILITY_FLOOR = 1e-10  # also what positions that do not exist are filled with, before the transform
CAPACITY_FLOOR = 1e-4
MASS_FLOOR = 1e-4  # of a class's probability before its logarithm: less than a sure token leaves to all others


def features_ref(probs: list[torch.Tensor], k: int, transform: int) -> torch.Tensor:
    """Features float32 [B, len(probs) * k] from the probabilities [B, >= k] of each window position, oldest first.

    transform: index into TRANSFORMS; "gap" keeps the log of the largest, then its distance to the log of each other.
    """
    parts = [p[:, :k] for p in probs]
    if TRANSFORMS[transform] != "raw":
        parts = [p.clamp_min(PROBABILITY_FLOOR).log() for p in parts]
    if TRANSFORMS[transform] == "gap":
        parts = [torch.cat([p[:, :1], p[:, :1] - p[:, 1:]], dim=1) for p in parts]
    return torch.cat(parts, dim=1)


def masses_ref(
    probs: list[torch.Tensor], ids: list[torch.Tensor], table: torch.Tensor, k: int, classes: int
) -> torch.Tensor:
    """Log of each class's probability at every position, float32 [B, len(probs) * classes].

    Args:
        probs, ids: float32 and int64 [B, >= k] of each window position. table: class of every token id, uint8 [V].
    """
    # all positions at once: on a GPU every operation is a launch, and these are small
    of_all, among = (torch.stack([part[:, :k] for part in parts]).flatten(0, 1) for parts in (ids, probs))
    found = class_mass(of_all, among, table, classes).clamp_min(MASS_FLOOR).log()
    return found.view(len(probs), -1, classes).transpose(0, 1).flatten(1)


def class_mass(ids: torch.Tensor, probs: torch.Tensor, table: torch.Tensor, classes: int) -> torch.Tensor:
    """Probability per class, float32 [B, classes], of record entries ids int64 [B, K] (-1 = padding), probs [B, K].

    table: uint8 [V]; ids beyond it, which some models have and no tokenizer makes, are of class 0.
    A product with 0 and 1, not a scatter: the same sum in the same order on every run, on a GPU too.
    """
    known = (ids >= 0) & (ids < table.numel())
    of_entry = torch.where(known, table[ids.clamp(0, table.numel() - 1)], 0)
    member = of_entry[:, :, None] == torch.arange(classes, device=ids.device)
    return (member * probs[:, :, None]).sum(dim=1)


def evaluate_capacity_ref(features: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Capacity float32 [B] in (0, 1) from features float32 [B, F].

    weights: mean [F], scale [F], W1 [h, F], b1 [h], W2 [h, h], b2 [h], W3 [1, h], b3 [1], all float32.
    """
    mean, scale, w1, b1, w2, b2, w3, b3 = weights
    x = torch.relu(linear((features - mean) / scale, w1, b1))
    x = torch.relu(linear(x, w2, b2))
    return linear(x, w3, b3).squeeze(-1).sigmoid()


def strength_ref(capacity: torch.Tensor, theta: float, beta: float) -> torch.Tensor:
    """Strength of each capacity, in its dtype; capacity is clamped to [1e-4, 1 - 1e-4], theta 0 gives 0."""
    if theta == 0:
        return torch.zeros_like(capacity)
    return beta * ((theta - capacity.clamp(CAPACITY_FLOOR, 1 - CAPACITY_FLOOR)) / theta).clamp_min(0)


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


def evaluator_step_ref(
    probs: list[torch.Tensor],
    weights: list[torch.Tensor],
    candidates: torch.Tensor,
    needs: torch.Tensor,
    counts: torch.Tensor,
    pending: torch.Tensor,
    pending_strength: torch.Tensor,
    pending_capacity: torch.Tensor,
    factor: torch.Tensor,
    k: int,
    transform: int,
    theta: float,
    beta: float,
    rule: int,
    full: float,
    extra: torch.Tensor | None = None,
    *,
    evaluate: Callable[..., torch.Tensor] = evaluate_capacity_ref,
    select: Callable[..., torch.Tensor] = select_candidate_ref,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Capacity float32 [B], strength float32 [B], choice int64 [B].

    Args:
        probs: float32 [B, >= k] of each window position, oldest first, 1 to 4 of them.
        weights: as in `evaluate_capacity_ref`; F = len(probs) * k + X.
        candidates, needs, counts, rule, full: the ladder, as in `select_candidate_ref`.
        pending: int64 [B]; where >= 0, the capacity and strength carried over are used instead of new ones.
        factor: float32 [B], each row's strength is multiplied by it.
        extra: float32 [B, X], inputs behind the values of all positions, used as they are.
        evaluate, select: implementations of `evaluate_capacity` and `select_candidate`.
    """
    waiting = pending >= 0
    features = features_ref(probs, k, transform)
    capacity = evaluate(features if extra is None else torch.cat([features, extra], dim=1), weights)
    strength = torch.where(waiting, pending_strength, strength_ref(capacity, theta, beta) * factor)
    capacity = torch.where(waiting, pending_capacity, capacity)
    return capacity, strength, select(candidates, needs, counts, strength, rule, full)
