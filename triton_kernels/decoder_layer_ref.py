"""Reference of `decoder_layer`: one pre-norm transformer layer over sibling candidates.

    n1 = rms(x) * w1                          (RMSNorm: Zhang and Sennrich 2019, arXiv 1910.07467)
    q, k = rotate(n1 Wq), rotate(n1 Wk)       (rotary embedding: Su et al. 2021, arXiv 2104.09864)
    y = x + siblings(q, k, n1 Wv) Wo          (`sibling_attention_ref`)
    out = y + (silu(n2 Wg) * n2 Wu) Wd        (SwiGLU: Shazeer 2020, arXiv 2002.05202), n2 = rms(y) * w2

The layer of Llama, Mistral and Qwen2; Qwen3 also normalises every head's queries and keys before the rotation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from caw.triton_kernels.sibling_attention_ref import (
    drafted_attention_ref,
    sibling_attention_packed_ref,
    sibling_attention_ref,
)
from torch.nn.functional import linear, rms_norm, silu


def decoder_layer_ref(
    hidden: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scratch: torch.Tensor,
    v_scratch: torch.Tensor,
    slot: int,
    lengths: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    eps: float,
    scale: float,
    window: int | None = None,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """One layer of C candidates of B sequences.

    Args:
        hidden: [B, C, E]. cos, sin: [B, C, D], both halves of D alike.
        k_cache, v_cache: [B, HK, S, D], see `sibling_attention_ref`.
        k_scratch, v_scratch: [B', slots, HK, D] with B' >= B, mutated: the candidates' keys and values are written to
            [:B, slot : slot + C].
        slot: of the first candidate of each sequence.
        lengths: int64 [B].
        weights: norm of the input [E], Wq [H*D, E], Wk, Wv [HK*D, E], Wo [E, H*D], norm before the MLP [E], Wg, Wu
            [I, E], Wd [E, I], and optionally norms of queries and keys [D].
        biases: of Wq, Wk, Wv, Wo, Wg, Wu, Wd, or None.
        eps: of all norms. scale, window: of the attention.
        rows: int64 [N], ascending: the sequence of each candidate, then packed: hidden [N, 1, E], cos, sin [N, 1, D];
            the candidates of a sequence go to its slots one after another. None = C of every sequence.

    Returns:
        Shaped as hidden, in its dtype. Everything has one dtype; sums are float32.
    """
    batch, candidates, _ = hidden.shape

    def mix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if rows is None:
            k_scratch[:batch, slot : slot + candidates] = k.transpose(1, 2)
            v_scratch[:batch, slot : slot + candidates] = v.transpose(1, 2)
            return sibling_attention_ref(q, k_cache, v_cache, k, v, lengths, scale, window)
        places = slot + torch.arange(batch) - torch.searchsorted(rows, rows)
        k_scratch[rows, places], v_scratch[rows, places] = k[:, :, 0], v[:, :, 0]
        return sibling_attention_packed_ref(q, k_cache, v_cache, k, v, lengths, rows, scale, window)

    return layer_around(mix, hidden, cos, sin, k_cache.shape[3], weights, biases, eps)


def layer_around(
    mix: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    dim: int,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    eps: float,
) -> torch.Tensor:
    """The layer with the attention `mix`: of queries [B, H, C, D], keys and values [B, HK, C, D], shaped as queries."""
    batch, candidates, width = hidden.shape
    norm1, wq, wk, wv, wo, norm2, wg, wu, wd = weights[:9]

    def split(x: torch.Tensor, norm: torch.Tensor | None = None) -> torch.Tensor:
        x = x.view(batch, candidates, -1, dim)
        return (x if norm is None else rms_norm(x, (dim,), norm, eps)).transpose(1, 2)

    def rotate(x: torch.Tensor) -> torch.Tensor:
        half = torch.cat([-x[..., dim // 2 :], x[..., : dim // 2]], dim=-1)
        return x * cos[:, None] + half * sin[:, None]

    x = rms_norm(hidden, (width,), norm1, eps)
    q = rotate(split(linear(x, wq, biases[0]), weights[9] if len(weights) > 9 else None))
    k = rotate(split(linear(x, wk, biases[1]), weights[10] if len(weights) > 9 else None))
    mixed = mix(q, k, split(linear(x, wv, biases[2])))
    hidden = hidden + linear(mixed.transpose(1, 2).reshape(batch, candidates, -1), wo, biases[3])
    x = rms_norm(hidden, (width,), norm2, eps)
    return hidden + linear(silu(linear(x, wg, biases[4])) * linear(x, wu, biases[5]), wd, biases[6])


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
