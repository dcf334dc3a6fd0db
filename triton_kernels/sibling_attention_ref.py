"""References of `sibling_attention`: C candidates of one position over the committed prefix and themselves.

    out_c = softmax([ scale * q_c . K[first : T] , scale * q_c . k_c ]) . [ V[first : T] ; v_c ]

Siblings share the prefix and are blind to each other, so no tree mask is needed: a length, and one own key and value.
(The paper's mask, read literally, hides a candidate from itself too; it must see itself.) Paper, appendix
"Explanations on Multi-branch Pre-generation Mechanism".

The same packed: as many candidates of each sequence as it has, one row each. The rectangle carries C candidates of
every sequence even where one strength alone is possible; packed, a sequence with one candidate costs one row.
"""

import torch


def sibling_attention_ref(
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
    """Attention of sibling candidates.

    Args:
        q: [B, H, C, D]. k_cache, v_cache: [B, HK, S, D], rows < lengths[b] are the prefix, the rest is never read
            into the result. k_own, v_own: [B, HK, C, D]. H must be a multiple of HK; head h uses KV head h // (H / HK).
        lengths: int64 [B], committed tokens T.
        scale: factor on q . k.
        window: sliding window; a query at position T sees positions > T - window, itself included.
        softcap: scores become softcap * tanh(score / softcap).
        sinks: float [H], an extra score per head that takes part in the softmax and carries no value.

    Returns:
        [B, H, C, D] in q's dtype; computed in float32, or in float64 where q is.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    batch, heads, candidates, dim = q.shape
    kv_heads, size = k_cache.shape[1], k_cache.shape[2]
    group = heads // kv_heads
    rows = q.to(wide).reshape(batch, kv_heads, group * candidates, dim)
    prefix = rows @ k_cache.to(wide).transpose(2, 3) * scale  # [B, HK, G*C, S]
    own = (q.to(wide).view(batch, kv_heads, group, candidates, dim) * k_own.to(wide)[:, :, None]).sum(-1) * scale
    own = own.reshape(batch, kv_heads, group * candidates, 1)
    if softcap is not None:
        prefix, own = (softcap * torch.tanh(x / softcap) for x in (prefix, own))
    position = torch.arange(size, device=q.device)
    hidden = position[None] >= lengths[:, None]
    if window is not None:
        hidden = hidden | (position[None] <= lengths[:, None] - window)
    scores = torch.cat([prefix.masked_fill(hidden[:, None, None], -torch.inf), own], dim=-1)
    if sinks is not None:
        sink = sinks.to(wide).view(1, kv_heads, group, 1).expand(batch, -1, -1, candidates)
        scores = torch.cat([scores, sink.reshape(batch, kv_heads, group * candidates, 1)], dim=-1)
    weights = scores.softmax(dim=-1)
    # beyond `lengths` the cache may hold anything, NaN included, and 0 * NaN is NaN
    values = v_cache.to(wide).masked_fill(hidden[:, None, :, None], 0)
    out = (weights[..., :size] @ values).view(batch, kv_heads, group, candidates, dim)
    own_weight = weights[..., size].view(batch, kv_heads, group, candidates, 1)
    return (out + own_weight * v_own.to(wide)[:, :, None]).reshape(q.shape).to(q.dtype)


def sibling_attention_packed_ref(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_own: torch.Tensor,
    v_own: torch.Tensor,
    lengths: torch.Tensor,
    rows: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of N candidates, of which row n belongs to sequence rows[n].

    Args:
        q: [N, H, 1, D]. k_own, v_own: [N, HK, 1, D].
        rows: int64 [N], ascending, in [0, B); a sequence may have any number of candidates, none included.
        k_cache, v_cache [B, HK, S, D], lengths [B], scale, window, softcap, sinks: as in `sibling_attention_ref`.

    Returns:
        [N, H, 1, D] in q's dtype; computed in float32.
    """
    own = (q, k_cache[rows], v_cache[rows], k_own, v_own, lengths[rows])
    return sibling_attention_ref(*own, scale, window, softcap, sinks)
