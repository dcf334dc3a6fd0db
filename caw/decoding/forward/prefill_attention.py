"""Attention of prompts: causal over left-aligned rows, the queries being the last T of S positions.

S > T where a part of the prompt is in the cache already: earlier chunks of a long prompt, or what all prompts begin
with. A mask is made only where a window, a softcap, sinks or such a part need one.
"""

import importlib
import importlib.metadata
from typing import Any

import torch

from caw import ops
from caw.io.show import shown
from caw.settings import PREFILL_ATTENTIONS, PrefillAttention

EAGER_BLOCK = 256  # query rows per block where scores are materialised; bounds memory at 256 * S per head
FLASH_DTYPES = (torch.float16, torch.bfloat16)


def compiled_prefill(how: PrefillAttention, device: torch.device, kernels: ops.Ops) -> bool:
    """Tell whether prompts are attended to by `prefix_attention`, whose rows do not depend on each other."""
    return how == "sdpa" and kernels.native and device.type == "cpu" and not ops.missing_extension()


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None,
    softcap: float | None, sinks: torch.Tensor | None, how: PrefillAttention = "sdpa",
) -> torch.Tensor:  # fmt: skip
    """[R, H, T, D] from query [R, H, T, D], key and value [R, HK, S, D].

    how: "sdpa" = torch's scaled_dot_product_attention, or "eager" where that knows no window, softcap or sinks;
    "flash_attention_2" = the flash-attn package, or "eager" for sinks, which it does not know; "eager" = scores in
    float32, block by block.
    """
    tokens, size = query.shape[2], key.shape[2]
    if how == "flash_attention_2" and sinks is None:
        return _flash(query, key, value, scale, window, softcap)
    if how == "sdpa" and softcap is None and sinks is None and (window is None or size <= window):
        # a lone query sees everything; torch's own causal mask is meant for as many keys as queries
        mask = None
        if 1 < tokens < size:
            from torch.nn.attention.bias import causal_lower_right  # brings torch's compiler: half a second

            mask = causal_lower_right(tokens, size)
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=1 < tokens == size, scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )  # fmt: skip
    group = query.shape[1] // key.shape[1]
    key, value = (x.float().repeat_interleave(group, 1) for x in (key, value))
    blocks = []
    for begin in range(0, tokens, EAGER_BLOCK):
        rows = range(begin, min(begin + EAGER_BLOCK, tokens))
        start, end = size - tokens + rows.start, size - tokens + rows.stop  # as positions
        first = 0 if window is None else max(0, start - window + 1)  # no row of the block sees what lies before
        distance = torch.arange(start, end, device=query.device)[:, None] - torch.arange(
            first, end, device=query.device
        )
        hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
        seen = key[:, :, first:end], value[:, :, first:end]
        blocks.append(_eager_block(query[:, :, rows.start : rows.stop], *seen, hidden, scale, softcap, sinks))
    return torch.cat(blocks, dim=2)


def _eager_block(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, hidden: torch.Tensor, scale: float,
    softcap: float | None, sinks: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """Attention of some query rows over float32 keys, where hidden [rows, keys] is false; scores in float32."""
    scores = (query.float() @ key.transpose(2, 3)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        sink = sinks.float().view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[2]]
    return (weights @ value).to(query.dtype)


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None, softcap: float | None
) -> torch.Tensor:
    """Run the flash-attn package's kernel; its causal mask is aligned to the last key, as wanted here."""
    out: torch.Tensor = importlib.import_module("flash_attn").flash_attn_func(
        *(x.transpose(1, 2) for x in (query, key, value)),
        softmax_scale=scale,
        causal=True,
        window_size=(-1, -1) if window is None else (window - 1, 0),
        softcap=softcap or 0.0,
    )
    return out.transpose(1, 2)


def check_prefill_attention(how: Any, device: torch.device, dtype: torch.dtype) -> None:
    """Raise ValueError or ImportError unless prompts can be attended to in this way."""
    if how not in PREFILL_ATTENTIONS:
        raise ValueError(
            f"prefill_attention must be one of {', '.join(PREFILL_ATTENTIONS)}, got {shown(how)}; use 'sdpa'"
        )
    if how != "flash_attention_2":
        return
    try:  # by the name of the distribution: other packages bring a module of the same name
        importlib.metadata.distribution("flash-attn")
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(
            "prefill_attention='flash_attention_2' needs the flash-attn package, which is not installed; install it "
            "with `pip install flash-attn`, or use 'sdpa'"
        ) from None
    if device.type != "cuda" or dtype not in FLASH_DTYPES:
        where = f"{str(dtype).removeprefix('torch.')} on {device.type}"
        raise ValueError(
            f"prefill_attention='flash_attention_2' needs float16 or bfloat16 on CUDA, got {where}; use 'sdpa'"
        )
