"""Reference of `drafted_attention`: `sibling_attention` of candidates, and of a chain of drafts behind the first one.

    row          0 .. C - 1      C            C + 1        ...
    is           candidates      1st draft    2nd draft
    position     T               T + 1        T + 2
    sees of all  itself          0, itself    0, C, itself

All see the prefix, as far as a window reaches back from their own position.
"""

from __future__ import annotations

import torch


def drafted_attention_ref(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_own: torch.Tensor,
    v_own: torch.Tensor,
    lengths: torch.Tensor,
    drafts: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of R rows of each sequence, the last `drafts` of which are a chain.

    Args:
        q: [B, H, R, D]. k_own, v_own: [B, HK, R, D]. drafts: in [0, R); 0 = siblings alone.
        k_cache, v_cache [B, HK, S, D], lengths int64 [B], scale, window, softcap, sinks: as in `sibling_attention_ref`.

    Returns:
        [B, H, R, D] in q's dtype; computed in float32, or in float64 where q is.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    (batch, heads, count, _), (kv_heads, size) = q.shape, k_cache.shape[1:3]
    group = heads // kv_heads
    keys, values = (
        torch.cat([cache, own], dim=2).to(wide).repeat_interleave(group, dim=1)
        for cache, own in ((k_cache, k_own), (v_cache, v_own))
    )
    scores = q.to(wide) @ keys.transpose(2, 3) * scale  # [B, H, R, S + R]
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    steps, seen = chain_steps(count, drafts, q.device), chain_mask(count, drafts, q.device)
    place = torch.arange(size, device=q.device)
    prefix = (place[None] < lengths[:, None])[:, None].expand(-1, count, -1)
    if window is not None:
        prefix = prefix & (place > lengths[:, None, None] + steps[:, None] - window)
        seen = seen & (steps[:, None] - steps[None] < window)
    visible = torch.cat([prefix, seen.expand(batch, -1, -1)], dim=2)[:, None]
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(wide).view(1, heads, 1, 1).expand(batch, -1, count, 1)], dim=3)
    weights = scores.softmax(dim=-1)[..., : size + count]
    # beyond `lengths` the cache may hold anything, NaN included, and 0 * NaN is NaN
    used = visible.any(dim=2)[..., None]
    return (weights @ values.masked_fill(~used, 0)).to(q.dtype)


def chain_steps(count: int, drafts: int, device: torch.device) -> torch.Tensor:
    """How far behind the prefix each of `count` rows stands, int64 [R]: candidates 0, drafts 1, 2, …"""
    return (torch.arange(count, device=device) - (count - drafts - 1)).clamp_min(0)


def chain_mask(count: int, drafts: int, device: torch.device) -> torch.Tensor:
    """Which row (first index) sees which, bool [R, R]."""
    row = torch.arange(count, device=device)
    steps = chain_steps(count, drafts, device)
    on_chain = (row == 0) | (steps > 0)
    return (row[:, None] == row[None]) | (on_chain[None] & (steps[None] < steps[:, None]))
