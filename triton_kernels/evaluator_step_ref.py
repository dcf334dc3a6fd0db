"""Reference of `evaluator_step`: records -> features -> capacity -> strength -> chosen candidate.

capacity = sigmoid(W3 relu(W2 relu(W1 (x - mean) / scale + b1) + b2) + b3)          (paper, equation 1)
strength = beta max(0, (theta - capacity) / theta)                                  (paper, delta' and K')
choice   = the rung of the ladder that the strength reaches                         (select_candidate_ref)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from caw.triton_kernels.evaluate_capacity_ref import evaluate_capacity_ref
from caw.triton_kernels.select_candidate_ref import select_candidate_ref

TRANSFORMS = ("raw", "log", "gap")  # an op takes the index; meaning: caw.evaluator.features
PROBABILITY_FLOOR = 1e-10
CAPACITY_FLOOR = 1e-4


def features_ref(probs: list[torch.Tensor], k: int, transform: int) -> torch.Tensor:
    """Features float32 [B, len(probs) * k] from the probabilities [B, >= k] of each window position, oldest first."""
    parts = [p[:, :k] for p in probs]
    if TRANSFORMS[transform] != "raw":
        parts = [p.clamp_min(PROBABILITY_FLOOR).log() for p in parts]
    if TRANSFORMS[transform] == "gap":
        parts = [torch.cat([p[:, :1], p[:, :1] - p[:, 1:]], dim=1) for p in parts]
    return torch.cat(parts, dim=1)


def strength_ref(capacity: torch.Tensor, theta: float, beta: float) -> torch.Tensor:
    """Strength float32 [B] of capacity float32 [B]; theta 0 gives 0."""
    if theta == 0:
        return torch.zeros_like(capacity)
    return beta * ((theta - capacity.clamp(CAPACITY_FLOOR, 1 - CAPACITY_FLOOR)) / theta).clamp_min(0)


def evaluator_step_ref(
    probs: list[torch.Tensor],
    weights: list[torch.Tensor],
    candidates: torch.Tensor,
    needs: torch.Tensor,
    counts: torch.Tensor,
    pending: torch.Tensor,
    pending_strength: torch.Tensor,
    pending_capacity: torch.Tensor,
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
        extra: float32 [B, X], inputs behind the values of all positions, used as they are.
        evaluate, select: implementations of `evaluate_capacity` and `select_candidate`.
    """
    waiting = pending >= 0
    features = features_ref(probs, k, transform)
    capacity = evaluate(features if extra is None else torch.cat([features, extra], dim=1), weights)
    strength = torch.where(waiting, pending_strength, strength_ref(capacity, theta, beta))
    capacity = torch.where(waiting, pending_capacity, capacity)
    return capacity, strength, select(candidates, needs, counts, strength, rule, full)
