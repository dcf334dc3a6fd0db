"""Reference of `sibling_attention_paged`: the same attention over a prefix that lies in pages.

K[b, h, n] = k_pages[block_table[b, n // P], h, n % P]        P positions a page
"""

from __future__ import annotations

import torch
from caw.triton_kernels.sibling_attention_ref import sibling_attention_ref


def gather_pages(pages: torch.Tensor, block_table: torch.Tensor) -> torch.Tensor:
    """Pages [N, HK, P, D] in the order of block_table [B, X] -> [B, HK, X * P, D]; unused entries may be anything."""
    picked = pages[block_table.long().clamp(0, pages.shape[0] - 1)]  # [B, X, HK, P, D]
    return picked.transpose(1, 2).flatten(2, 3)


def sibling_attention_paged_ref(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    k_own: torch.Tensor,
    v_own: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of sibling candidates over a paged prefix.

    Args:
        k_pages, v_pages: [N, HK, P, D]. block_table: int32 [B, X], page numbers of each sequence in order; entries
            beyond its length are not used. The rest as in `sibling_attention_ref`, with S = X * P.

    Returns:
        [B, H, C, D] in q's dtype; computed in float32.
    """
    k_cache, v_cache = gather_pages(k_pages, block_table), gather_pages(v_pages, block_table)
    return sibling_attention_ref(q, k_cache, v_cache, k_own, v_own, lengths, scale, window, softcap, sinks)
