"""Reference of `evaluator_step`: records -> features -> capacity -> strength -> chosen candidate.

    capacity, strength    `caw.capacity`; the strength is multiplied by each row's factor
    choice                `caw.ladder`: how many rungs of the ladder beyond the first the strength reaches

The choice is exact, ties included.
"""

from collections.abc import Callable

import torch

from caw.capacity import evaluate_capacity_ref, strength_of, window_features
from caw.ladder import select_candidate_ref


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
    features = window_features(probs, k, transform)
    capacity = evaluate(features if extra is None else torch.cat([features, extra], dim=1), weights)
    strength = torch.where(waiting, pending_strength, strength_of(capacity, theta, beta) * factor)
    capacity = torch.where(waiting, pending_capacity, capacity)
    return capacity, strength, select(candidates, needs, counts, strength, rule, full)
