"""References of `prefix_attention` and of a layer around it: rows with a length of their own each, as a prompt's."""

from collections.abc import Sequence

import torch

from caw.triton_kernels.decoder_layer_ref import FAMILIES, layer_around
from caw.triton_kernels.sibling_attention_ref import sibling_attention_ref


def prefix_attention_ref(
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
    """Attention of N rows, of which row n sees the first lengths[n] tokens of row rows[n] of the cache, and itself.

    Args:
        q: [N, H, 1, D]. k_cache, v_cache: [B, HK, S, D]. k_own, v_own: [N, HK, 1, D].
        lengths: int64 [N] in [0, S]. rows: int64 [N] in [0, B), in any order.
        scale, window, softcap, sinks: as in `sibling_attention_ref`.

    Returns:
        [N, H, 1, D] in q's dtype; computed in float32. A row is the same, bit for bit, as a candidate behind as many
        tokens in the compiled `sibling_attention`.
    """
    given = (q, k_cache[rows], v_cache[rows], k_own, v_own, lengths)
    return sibling_attention_ref(*given, scale, window, softcap, sinks)


def prefill_layer_ref(
    hidden: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    places: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    eps: float,
    scale: float,
    window: int | None,
    family: str,
    softcap: float | None,
    multiplier: float,
) -> torch.Tensor:
    """One layer of tokens of prompts or drafts: `decoder_layer_ref`, whose rows are positions that join the cache.

    Args:
        hidden: [R, T, E]. cos, sin: [R, T, D].
        k_cache, v_cache: [B, HK, S, D], mutated: keys and values of row n, in the order of hidden, are written to
            [rows[n], :, places[n]]. What lies before positions[n] is there already or comes in this call.
        rows, positions, places: int64 [R * T]. The rest as in `decoder_layer_ref`.

    Returns:
        Shaped as hidden, in its dtype.
    """

    def mix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(1, 2).flatten(0, 1)[:, :, None] for x in (q, k, v))  # [R * T, heads, 1, D]
        k_cache[rows, :, places], v_cache[rows, :, places] = k[:, :, 0], v[:, :, 0]
        mixed = prefix_attention_ref(q, k_cache, v_cache, k, v, positions, rows, scale, window, softcap)
        return mixed[:, :, 0].unflatten(0, hidden.shape[:2]).transpose(1, 2)

    _, kv_heads, _, dim = k_cache.shape
    return layer_around(mix, hidden, cos, sin, kv_heads, dim, weights, biases, eps, FAMILIES[family], multiplier)
