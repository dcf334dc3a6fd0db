"""Capacity: from records to features, capacity and strength.

capacity = sigmoid(W3 relu(W2 relu(W1 (x - mean) / scale + b1) + b2) + b3)          (paper, equation 1)
strength = beta max(0, (theta - capacity) / theta)                                  (paper, delta' and K')

Capacity is the paper's C-hat: the predicted *importance* of a token, in (0, 1). High capacity means protect; the
paper's name is inverted. Paper: appendix "Mechanisms of Contextual Generation States-Aware Watermarking". Training,
policies, operators and kernels all use these functions.
"""

from __future__ import annotations

from caw.arrays import torch
from caw.op_indices import TRANSFORMS

PROBABILITY_FLOOR = 1e-10  # also what positions that do not exist are filled with, before the transform
CAPACITY_FLOOR = 1e-4
MASS_FLOOR = 1e-4  # of a class's probability before its logarithm: less than a sure token leaves to all others


def window_features(probs: list[torch.Tensor], k: int, transform: int) -> torch.Tensor:
    """Return features float32 [B, len(probs) * k] of probabilities [B, >= k] a position; transform: of TRANSFORMS."""
    parts = [p[:, :k] for p in probs]
    if TRANSFORMS[transform] != "raw":
        parts = [p.clamp_min(PROBABILITY_FLOOR).log() for p in parts]
    if TRANSFORMS[transform] == "gap":
        parts = [torch.cat([p[:, :1], p[:, :1] - p[:, 1:]], dim=1) for p in parts]
    return torch.cat(parts, dim=1)


def window_masses(
    probs: list[torch.Tensor], ids: list[torch.Tensor], table: torch.Tensor, k: int, classes: int
) -> torch.Tensor:
    """Return the log of each class's probability at every position, float32 [B, len(probs) * classes].

    Args:
        probs, ids: float32 and int64 [B, >= k] of each window position. table: class of every token id, uint8 [V].
    """
    # all positions at once: on a GPU every operation is a launch, and these are small
    of_all, among = (torch.stack([part[:, :k] for part in parts]).flatten(0, 1) for parts in (ids, probs))
    found = class_mass(of_all, among, table, classes).clamp_min(MASS_FLOOR).log()
    return found.view(len(probs), -1, classes).transpose(0, 1).flatten(1)


def class_mass(ids: torch.Tensor, probs: torch.Tensor, table: torch.Tensor, classes: int) -> torch.Tensor:
    """Return the probability per class, float32 [B, classes], of record entries ids int64 [B, K] (-1 = padding), probs
    [B, K].

    table: uint8 [V]; ids beyond it, which some models have but tokenizers never produce, are of class 0. Implemented as
    a product with 0 and 1 rather than a scatter, so that the sum has the same order on every run, on a GPU too.
    """
    known = (ids >= 0) & (ids < table.numel())
    of_entry = torch.where(known, table[ids.clamp(0, table.numel() - 1)], 0)
    member = of_entry[:, :, None] == torch.arange(classes, device=ids.device)
    return (member * probs[:, :, None]).sum(dim=1)


def evaluate_capacity_ref(features: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Return the capacity float32 [B] in (0, 1) of features float32 [B, F]; weights: mean, scale, W1, b1, ..., b3."""
    mean, scale, w1, b1, w2, b2, w3, b3 = weights
    x = torch.relu(torch.nn.functional.linear((features - mean) / scale, w1, b1))
    x = torch.relu(torch.nn.functional.linear(x, w2, b2))
    return torch.nn.functional.linear(x, w3, b3).squeeze(-1).sigmoid()


def strength_of(capacity: torch.Tensor, theta: float, beta: float) -> torch.Tensor:
    """Return the strength of each capacity, in its dtype. Capacity is clamped to [1e-4, 1 - 1e-4]; theta 0 gives 0."""
    if theta == 0:
        return torch.zeros_like(capacity)
    return beta * ((theta - capacity.clamp(CAPACITY_FLOOR, 1 - CAPACITY_FLOOR)) / theta).clamp_min(0)
