"""Every torch op of this library: schema, fake, dispatch. The only place where ops are registered."""

from __future__ import annotations

import torch

from caw.triton_kernels.commit_kv_ref import commit_kv_ref
from caw.triton_kernels.sibling_attention_ref import sibling_attention_ref
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


@torch.library.custom_op("caw::sibling_attention", mutates_args=())
def sibling_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_own: torch.Tensor,
    v_own: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of C sibling candidates over the prefix and themselves; see `sibling_attention_ref`."""
    return sibling_attention_ref(q, k_cache, v_cache, k_own, v_own, lengths, scale, window, softcap, sinks)


@sibling_attention.register_fake
def _(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_own: torch.Tensor,
    v_own: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    return q.new_empty(q.shape)


@torch.library.custom_op("caw::commit_kv", mutates_args=("store", "lengths"))
def commit_kv(
    store: torch.Tensor, scratch: torch.Tensor, choice: torch.Tensor, lengths: torch.Tensor, active: torch.Tensor
) -> None:
    """Commit the chosen sibling's keys and values in place; see `commit_kv_ref`."""
    commit_kv_ref(store, scratch, choice, lengths, active)


@commit_kv.register_fake
def _(
    store: torch.Tensor, scratch: torch.Tensor, choice: torch.Tensor, lengths: torch.Tensor, active: torch.Tensor
) -> None:
    return None
