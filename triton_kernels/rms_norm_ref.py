"""Reference of `rms_norm`."""

import torch


def rms_norm_ref(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
    """x / rms(x) * (weight + offset) over the last dimension, rounded once (Zhang and Sennrich 2019, arXiv 1910.07467).

    Args:
        x: [..., E]. weight: [E], in its dtype. eps: added to the mean square. offset: 1 where weights are kept as
            their distance from 1, as Gemma's are.

    Returns:
        Shaped as x, in its dtype; sums are float32.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * (weight.to(wide.dtype) + offset)).to(x.dtype)
