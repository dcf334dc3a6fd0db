"""Reference of `decoder_layer`: one pre-norm transformer layer over sibling candidates.

    n1 = rms(x) * w1                          (RMSNorm: Zhang and Sennrich 2019, arXiv 1910.07467)
    q, k = rotate(n1 Wq), rotate(n1 Wk)       (rotary embedding: Su et al. 2021, arXiv 2104.09864)
    y = x + siblings(q, k, n1 Wv) Wo          (`sibling_attention_ref`)
    out = y + (silu(n2 Wg) * n2 Wu) Wd        (SwiGLU: Shazeer 2020, arXiv 2002.05202), n2 = rms(y) * w2

The layer of Llama, Mistral and Qwen2; Qwen3 also normalises every head's queries and keys before the rotation. What
other families do otherwise is a `Family`; Phi-3 has Llama's layer with merged matrices, and may rotate a part of each
head; Granite multiplies what attention and the MLP give before it is added.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear

from caw.triton_kernels.rms_norm_ref import rms_norm_ref
from caw.triton_kernels.sibling_attention_ref import (
    sibling_attention_packed_ref,
    sibling_attention_ref,
)
from caw.triton_kernels.small_linear_ref import GELU_TANH, SILU, activated

LLAMA = "llama"


@dataclass(frozen=True)
class Family:
    """What the layers of a family do, where families differ.

    norm_offset: added to the weights of all norms. activation: of the gate, SILU or GELU_TANH. after_norms: whether
    what attention and the MLP give is normalised before it is added.
    """

    norm_offset: float = 0.0
    activation: str = SILU
    after_norms: bool = False


# Gemma 3 is as Gemma 2, with norms of heads and without a cap of scores
FAMILIES = {LLAMA: Family(), "gemma": Family(1.0, GELU_TANH), "gemma2": Family(1.0, GELU_TANH, after_norms=True)}


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
    family: str = LLAMA,
    softcap: float | None = None,
    multiplier: float = 1.0,
) -> torch.Tensor:
    """One layer of C candidates of B sequences.

    Args:
        hidden: [B, C, E]. cos, sin: [B, C, R], both halves of R alike; a head's dimensions from R on are not rotated.
        k_cache, v_cache: [B, HK, S, D], see `sibling_attention_ref`.
        k_scratch, v_scratch: [B', slots, HK, D] with B' >= B, mutated: the candidates' keys and values are written to
            [:B, slot : slot + C].
        slot: of the first candidate of each sequence.
        lengths: int64 [B].
        weights: norm of the input [E], Wq [H*D, E], Wk, Wv [HK*D, E], Wo [E, H*D], norm before the MLP [E], Wg, Wu
            [I, E], Wd [E, I], optionally norms of queries and keys [D], and of families with `after_norms` two more
            norms [E]: of attention's output and of the MLP's. On a CPU matrices may be merged: rows of Wq, Wk and Wv
            in one, of Wg and Wu in another.
        biases: of Wq, Wk, Wv, Wo, Wg, Wu, Wd, or None; with merged matrices of these.
        eps: of all norms. scale, window, softcap: of the attention.
        rows: int64 [N], ascending: the sequence of each candidate, then packed: hidden [N, 1, E], cos, sin [N, 1, R];
            the candidates of a sequence go to its slots one after another. None = C of every sequence.
        family: of FAMILIES. multiplier: of what attention and the MLP give.

    Returns:
        Shaped as hidden, in its dtype. Everything has one dtype; sums are float32.
    """
    batch, count, _ = hidden.shape

    def mix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if rows is None:
            k_scratch[:batch, slot : slot + count] = k.transpose(1, 2)
            v_scratch[:batch, slot : slot + count] = v.transpose(1, 2)
            return sibling_attention_ref(q, k_cache, v_cache, k, v, lengths, scale, window, softcap)
        places = slot + torch.arange(batch) - torch.searchsorted(rows, rows)
        k_scratch[rows, places], v_scratch[rows, places] = k[:, :, 0], v[:, :, 0]
        return sibling_attention_packed_ref(q, k_cache, v_cache, k, v, lengths, rows, scale, window, softcap)

    _, kv_heads, _, dim = k_cache.shape
    return layer_around(mix, hidden, cos, sin, kv_heads, dim, weights, biases, eps, FAMILIES[family], multiplier)


def layer_around(
    mix: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    kv_heads: int,
    dim: int,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    eps: float,
    family: Family,
    multiplier: float,
) -> torch.Tensor:
    """The layer with the attention `mix`: of queries [B, H, C, D], keys and values [B, HK, C, D], shaped as queries."""
    batch, candidates, _ = hidden.shape
    if len(weights) - 2 * family.after_norms < 9:
        weights, biases = apart(weights, biases, kv_heads * dim)
    norm1, wq, wk, wv, wo, norm2, wg, wu, wd, *norms = weights
    after, turned = (norms[-2:] if family.after_norms else ()), cos.shape[-1]
    head_norms = norms[: len(norms) - len(after)] or [None, None]

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm_ref(x, weight, eps, family.norm_offset)

    def split(x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        x = x.view(batch, candidates, -1, dim)
        return (x if weight is None else norm(x, weight)).transpose(1, 2)

    def rotate(x: torch.Tensor) -> torch.Tensor:
        x, rest = x[..., :turned], x[..., turned:]
        half = torch.cat([-x[..., turned // 2 :], x[..., : turned // 2]], dim=-1)
        return torch.cat([x * cos[:, None] + half * sin[:, None], rest], dim=-1)

    x = norm(hidden, norm1)
    q = rotate(split(linear(x, wq, biases[0]), head_norms[0]))
    k = rotate(split(linear(x, wk, biases[1]), head_norms[1]))
    mixed = mix(q, k, split(linear(x, wv, biases[2])))
    out = linear(mixed.transpose(1, 2).reshape(batch, candidates, -1), wo, biases[3])
    hidden = hidden + multiplier * (norm(out, after[0]) if after else out)
    x = norm(hidden, norm2)
    out = linear(activated(linear(x, wg, biases[4]), family.activation) * linear(x, wu, biases[5]), wd, biases[6])
    return hidden + multiplier * (norm(out, after[1]) if after else out)


def apart(
    weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None], kv: int
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Weights and biases of merged matrices as those of Wq, Wk, Wv, Wo, Wg, Wu, Wd. kv: rows of Wk and of Wv."""
    norm1, qkv, wo, norm2, gate_up, wd, *norms = weights
    sizes = [qkv.shape[0] - 2 * kv, kv, kv], [gate_up.shape[0] // 2] * 2

    def rows(x: torch.Tensor | None, sizes: list[int]) -> list[Any]:
        return [None] * len(sizes) if x is None else list(x.split(sizes))

    parted = [norm1, *rows(qkv, sizes[0]), wo, norm2, *rows(gate_up, sizes[1]), wd, *norms]
    return parted, [*rows(biases[0], sizes[0]), biases[1], *rows(biases[2], sizes[1]), biases[3]]
