"""Reference of `sibling_attention_packed`: as many candidates of each sequence as it has, one row each.

The rectangle of `sibling_attention` carries C candidates of every sequence even where one strength alone is possible;
packed, a sequence with one candidate costs one row.
"""

from __future__ import annotations

import torch
from caw.triton_kernels.sibling_attention_ref import sibling_attention_ref


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
