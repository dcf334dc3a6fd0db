"""Sibling attention by the flash-attn package: its kernel over the prefix, merged with each candidate's own token.

An alternative to this library's own kernel, only on request (`backend="flash-attn"`). Its `flash_attn_with_kvcache`
gives softmax(scale q . K) . V over the first lengths[b] tokens and the logsumexp of the scores, all that a merge needs.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata

import torch

from caw import ops

NAME = "flash-attn"
DTYPES = (torch.float16, torch.bfloat16)


def flash_kernels() -> ops.Ops:
    """Return the ops as torch dispatches them, with sibling attention by flash-attn; ImportError without it."""
    try:  # by the name of the distribution: other packages bring a module of the same name
        importlib.metadata.distribution(NAME)
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(
            f"backend='{NAME}' needs the flash-attn package, which is not installed; install it with "
            "`pip install flash-attn`, or leave backend out"
        ) from None
    return dataclasses.replace(ops.dispatched(), sibling_attention=flash_sibling_attention)


def check_flash(device: torch.device, dtype: torch.dtype) -> None:
    """Raise ValueError for a model that the package's kernels cannot serve."""
    if device.type != "cuda" or dtype not in DTYPES:
        found = f"{str(dtype).removeprefix('torch.')} on {device.type}"
        raise ValueError(f"backend='{NAME}' needs float16 or bfloat16 on CUDA, got {found}; leave backend out")


def flash_sibling_attention(
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
    """`sibling_attention_ref`, arguments and result alike, for float16 and bfloat16.

    A candidate goes in as one more query head of its KV head, not as one more position: all see the same prefix, and a
    window ends at the same place for all of them.
    """
    batch, heads, candidates, dim = q.shape
    prefix, lse = importlib.import_module("flash_attn").flash_attn_with_kvcache(
        q.reshape(batch, 1, heads * candidates, dim),
        k_cache.transpose(1, 2),
        v_cache.transpose(1, 2),
        cache_seqlens=lengths.to(torch.int32),
        softmax_scale=scale,
        causal=False,
        # counted from the last committed token; -1 would mean no window
        window_size=(-1, -1) if window is None else (max(window - 2, 0), 0),
        softcap=softcap or 0.0,
        return_softmax_lse=True,
    )
    prefix, lse = prefix.reshape(q.shape).float(), lse.reshape(batch, heads, candidates).float()
    nothing = (lengths == 0) if window is None or window > 1 else torch.ones_like(lengths, dtype=torch.bool)
    lse = lse.masked_fill(nothing[:, None, None], -torch.inf)  # the package's versions differ on an empty prefix
    prefix = prefix.masked_fill(nothing[:, None, None, None], 0)
    group = heads // k_cache.shape[1]
    own_k, own_v = (x.float().repeat_interleave(group, dim=1) for x in (k_own, v_own))
    own = (q.float() * own_k).sum(dim=-1) * scale
    if softcap is not None:
        own = softcap * torch.tanh(own / softcap)
    total = torch.logaddexp(lse, own)
    if sinks is not None:
        total = torch.logaddexp(total, sinks.float()[None, :, None])
    out = (lse - total).exp()[..., None] * prefix + (own - total).exp()[..., None] * own_v
    return out.to(q.dtype)
