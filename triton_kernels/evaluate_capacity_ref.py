"""Reference of `evaluate_capacity`: the evaluator's three fully connected layers.

capacity = sigmoid(W3 relu(W2 relu(W1 (x - mean) / scale + b1) + b2) + b3)        (paper, equation 1)
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear


def evaluate_capacity_ref(features: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Capacity float32 [B] in (0, 1) from features float32 [B, F].

    weights: mean [F], scale [F], W1 [h, F], b1 [h], W2 [h, h], b2 [h], W3 [1, h], b3 [1], all float32.
    """
    mean, scale, w1, b1, w2, b2, w3, b3 = weights
    x = torch.relu(linear((features - mean) / scale, w1, b1))
    x = torch.relu(linear(x, w2, b2))
    return linear(x, w3, b3).squeeze(-1).sigmoid()
