"""References of `small_linear` and of the products inside a layer, in plain PyTorch."""

from collections.abc import Sequence

import torch
from torch.nn.functional import gelu, linear, silu

from caw.triton_kernels.packed_weights_ref import unpack_weight_ref

SILU, GELU_TANH = "silu", "gelu_tanh"


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
    activation: str = SILU,
) -> torch.Tensor:
    """Products side by side, or of two activation(first) * second; plus the residual. Rounded once, at the end.

    Args:
        x: [M, K]. weights: [O_i, K] each. biases: [O_i] each, or None.
        residual: [M, O], O the sum of all O_i, or O_0 where gated.
        activation: SILU, or GELU_TANH: GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415) by its formula with tanh.

    Returns:
        [M, O] in x's dtype.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    parts = [
        linear(wide, w.to(wide.dtype), None if b is None else b.to(wide.dtype))
        for w, b in zip(weights, biases, strict=True)
    ]
    out = activated(parts[0], activation) * parts[1] if gated else torch.cat(parts, dim=1)
    return (out if residual is None else out + residual.to(wide.dtype)).to(x.dtype)


def activated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """x through SILU or GELU_TANH."""
    return gelu(x, approximate="tanh") if activation == GELU_TANH else silu(x)
