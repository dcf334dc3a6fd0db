"""References of `small_linear` and of the products inside a layer, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from caw.triton_kernels.packed_weights_ref import unpack_weight_ref
from torch.nn.functional import linear, silu


def small_linear_ref(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [M, K] times weight [O, K] transposed, plus bias [O]; sums in float32, rounded once -> [M, O] in x's dtype."""
    return product_ref(x, [weight], [bias])


def packed_linear_ref(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`small_linear_ref` of the weight [O, K] that a packed one [O, bytes] stands for, rounded to x's dtype."""
    return product_ref(x, [unpack_weight_ref(packed, x.shape[1], x.dtype)], [bias])


def product_ref(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    residual: torch.Tensor | None = None,
    gated: bool = False,
) -> torch.Tensor:
    """Products side by side, or of two silu(first) * second; plus the residual. Rounded once, at the end.

    Args:
        x: [M, K]. weights: [O_i, K] each. biases: [O_i] each, or None.
        residual: [M, O], O the sum of all O_i, or O_0 where gated.

    Returns:
        [M, O] in x's dtype.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    parts = [
        linear(wide, w.to(wide.dtype), None if b is None else b.to(wide.dtype))
        for w, b in zip(weights, biases, strict=True)
    ]
    out = silu(parts[0]) * parts[1] if gated else torch.cat(parts, dim=1)
    return (out if residual is None else out + residual.to(wide.dtype)).to(x.dtype)
