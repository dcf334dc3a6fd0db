"""Reference of `drafted_layer`: `decoder_layer` of candidates, and of a chain of drafts behind the first one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from caw.triton_kernels.decoder_layer_ref import layer_around
from caw.triton_kernels.drafted_attention_ref import drafted_attention_ref


def drafted_layer_ref(
    hidden: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scratch: torch.Tensor,
    v_scratch: torch.Tensor,
    lengths: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    eps: float,
    scale: float,
    drafts: int,
    window: int | None = None,
) -> torch.Tensor:
    """One layer of R rows of B sequences: hidden [B, R, E], cos and sin [B, R, D], of each row's own position.

    The last `drafts` rows are a chain, see `drafted_attention_ref`; all else as in `decoder_layer_ref`. Mutates the
    scratch, whose first R slots take keys and values.
    """
    batch, count, _ = hidden.shape

    def mix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k_scratch[:batch, :count], v_scratch[:batch, :count] = k.transpose(1, 2), v.transpose(1, 2)
        return drafted_attention_ref(q, k_cache, v_cache, k, v, lengths, drafts, scale, window)

    return layer_around(mix, hidden, cos, sin, k_cache.shape[3], weights, biases, eps)
