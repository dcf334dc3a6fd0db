"""How this library gets into a transformers model: an attention function and a layout that travels in kwargs.

The function is registered as "caw" with the attention interface but not with the mask interface, so transformers
builds no mask at all: prefill is causal over left-aligned rows, a decoding step needs only lengths.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from caw.decoding.kv_cache import SiblingCache

NAME = "caw"
EAGER_BLOCK = 256  # query rows per block where scores are materialised; bounds memory at 256 * T per head


@dataclass
class StepLayout:
    """Where the candidates of one forward stand: their cache, its first `rows` rows, and its first `limit` places.

    lengths: int64 [rows], committed tokens before the candidates.
    """

    cache: SiblingCache
    lengths: torch.Tensor
    limit: int


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    caw_layout: StepLayout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention contract: query [R, H, Q, D], key and value [R, HK, Q, D] -> ([R, Q, H, D], None)."""
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    if caw_layout is None:
        out = causal_attention(query, key, value, scale, sliding_window, softcap, s_aux)
    else:
        store = caw_layout.cache.store
        assert store is not None
        prefix = store[module.layer_idx, :, : query.shape[0], :, : caw_layout.limit]
        out = caw_layout.cache.kernels.sibling_attention(
            query, prefix[0], prefix[1], key, value, caw_layout.lengths, scale, sliding_window, softcap, s_aux
        )
    return out.transpose(1, 2), None


def causal_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Causal self-attention of left-aligned rows, [R, H, T, D]; a mask only where window, softcap or sinks need it."""
    tokens = query.shape[2]
    if softcap is None and sinks is None and (window is None or tokens <= window):
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=tokens > 1, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
        )
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    blocks = []
    for start in range(0, tokens, EAGER_BLOCK):
        rows = torch.arange(start, min(start + EAGER_BLOCK, tokens), device=query.device)
        blocks.append(_eager_block(query[:, :, rows], rows, key, value, scale, window, softcap, sinks))
    return torch.cat(blocks, dim=2)


def _eager_block(
    query: torch.Tensor,
    rows: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of query rows at positions `rows` over all keys, scores in float32."""
    scores = (query.float() @ key.float().transpose(2, 3)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    position = torch.arange(key.shape[2], device=query.device)
    hidden = position[None] > rows[:, None]
    if window is not None:
        hidden = hidden | (position[None] <= rows[:, None] - window)
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        sink = sinks.float().view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[2]]
    return (weights @ value.float()).to(query.dtype)


@contextlib.contextmanager
def caw_attention(model: Any) -> Iterator[None]:
    """The model uses this library's attention inside the block and its own again afterwards, whatever happens."""
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


AttentionInterface.register(NAME, attention)
