"""Every torch op of this library: schema, fake, dispatch. The only place where ops are registered."""

from __future__ import annotations

import torch

from caw.triton_kernels.topk_softmax_ref import topk_softmax_ref


@torch.library.custom_op("caw::topk_softmax", mutates_args=())
def topk_softmax(
    logits: torch.Tensor, k: int, rows: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Exact top-K of each row: (values, ids, probs, logsumexp); see `topk_softmax_ref`."""
    return topk_softmax_ref(logits, k, rows)


@topk_softmax.register_fake
def _(
    logits: torch.Tensor, k: int, rows: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    count = logits.shape[0] if rows is None else rows.shape[0]
    values = logits.new_empty((count, k), dtype=torch.float32)
    return (
        values,
        logits.new_empty((count, k), dtype=torch.int64),
        torch.empty_like(values),
        logits.new_empty((count,), dtype=torch.float32),
    )
