"""Reference of `race_values`: log p_t - log(-log F_t) for the tokens of a record (up to the row's constant)."""

from __future__ import annotations

import torch

from caw import prf


def race_values_ref(
    values: torch.Tensor, ids: torch.Tensor, race_values: torch.Tensor, context: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """Race values float64 [B, K] of EXP (`caw.watermarks.exp`), -inf where `values` is.

    Args:
        values, race_values: float32 [B, K], logits the choice is made from, and the same without sampling noise.
        ids: int64 [B, K]. context: int64 [B, W]. key: int64 [B], the 64 bits of each row's key.
    """
    noise = prf.gumbel(prf.context_words(key[:, None], context, ids))
    return torch.where(values > -torch.inf, race_values.double() + noise, -torch.inf)
