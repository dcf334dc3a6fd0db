"""A whole transformer layer of a step in seven launches, of eight where its outputs are normalised (decoder_layer_ref).

    n1 = rms(x) w1;  [q k v] = n1 [Wq Wk Wv]^T + b              rms_norm, _product_kernel
    m = siblings(rotate(q), rotate(k), v);  scratch = k, v      _layer_attention_kernel
    y = x + m Wo^T;  n2 = rms(y) w2                             _product_kernel, rms_norm
    out = y + (silu(n2 Wg^T) * n2 Wu^T) Wd^T                    _product_kernel, twice

What families do otherwise is a `Family`, which the launches are told: another activation, norms whose weights are
distances from 1, and norms of what attention and the MLP give, before it is added.

The weights stay where they are, one tensor each: a program of a product chooses by its number whose outputs it makes,
so that three products are one launch without a merged copy. As in `sibling_attention` the prefix is cut into S parts;
here the last program of a tile to finish merges them. Programs count in `arrivals`, which the layer's first launch
clears, so that nothing needs clearing between two steps.
"""

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import replace

import torch
import triton
import triton.language as tl

from caw.triton_kernels.block_sizes import attention_blocks, num_splits
from caw.triton_kernels.decoder_layer_ref import FAMILIES, LLAMA
from caw.triton_kernels.launching import FLOATS, INTERPRETED, cdiv, check, check_lengths, check_tensor, launch
from caw.triton_kernels.packed_weights import check_packed
from caw.triton_kernels.packed_weights_ref import BY_DTYPE
from caw.triton_kernels.rms_norm import MAX_WIDTH, added, added_and_normed, normed
from caw.triton_kernels.sibling_attention import KeysValues, attend_prefix, log2_scores, prefix_bounds
from caw.triton_kernels.small_linear import MAX_ROWS, product

MAX_CANDIDATES = 32
MAX_DIM = 256
# Arguments that the kernel is given together. norms: of heads, to whose weights `offset` is added; parts: of the prefix
Rotary = namedtuple("Rotary", "cos_ptr sin_ptr stride_b stride_c")
Norms = namedtuple("Norms", "q_ptr k_ptr eps offset")
Parts = namedtuple("Parts", "part_ptr lse_ptr arrivals_ptr")


@triton.jit
def _rotate(x_ptr, o_row, norms, norm_ptr, rotary, o_cos, m_row, D: tl.constexpr, ROTATED: tl.constexpr,
             BLOCK_D: tl.constexpr):  # fmt: skip
    """Heads x[o_row : o_row + D], normalised if asked, their first ROTATED dimensions rotated by cos and sin at o_cos;
    float32 [rows, BLOCK_D]."""
    o_d = tl.arange(0, BLOCK_D)
    half: tl.constexpr = ROTATED // 2
    o_p = tl.where(o_d < half, o_d + half, o_d - half)  # the dimension that each is rotated with
    mask = m_row[:, None] & (o_d < D)[None, :]
    m_rot = m_row[:, None] & (o_d < ROTATED)[None, :]
    b_x = tl.load(x_ptr + o_row[:, None] + o_d[None, :], mask=mask, other=0.0).to(tl.float32)  # [rows, BLOCK_D]
    b_p = tl.load(x_ptr + o_row[:, None] + o_p[None, :], mask=mask, other=0.0).to(tl.float32)  # [rows, BLOCK_D]
    if norms is not None:
        scale = tl.rsqrt(tl.sum(b_x * b_x, 1) / D + norms.eps)[:, None]
        b_x = b_x * scale * (tl.load(norm_ptr + o_d, mask=o_d < D, other=0.0).to(tl.float32) + norms.offset)[None, :]
        b_p = b_p * scale * (tl.load(norm_ptr + o_p, mask=o_d < D, other=0.0).to(tl.float32) + norms.offset)[None, :]
    b_cos = tl.load(rotary.cos_ptr + o_cos[:, None] + o_d[None, :], mask=m_rot, other=1.0).to(tl.float32)
    b_sin = tl.load(rotary.sin_ptr + o_cos[:, None] + o_d[None, :], mask=m_rot, other=0.0).to(tl.float32)
    return b_x * b_cos + tl.where((o_d < half)[None, :], -b_p, b_p) * b_sin


@triton.jit
def _merge_parts(parts, o_r, m_m, top, acc, count, splits, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """All parts of rows o_r and their own tokens, of score `top` and value acc: the output [BLOCK_M, BLOCK_D]."""
    o_d = tl.arange(0, BLOCK_D)
    total = tl.full(top.shape, 1.0, tl.float32)
    for s in range(0, splits):
        # .cg: other multiprocessors wrote these; what this one's own cache holds of them may be older
        p_lse = parts.lse_ptr + s * count + o_r
        b_lse = tl.load(p_lse, mask=m_m, other=float("-inf"), cache_modifier=".cg")  # [BLOCK_M]
        there = b_lse != float("-inf")  # an empty part wrote nothing; NaN is not one
        m_part = there[:, None] & (o_d < D)[None, :]
        p_part = parts.part_ptr + (s * count + o_r)[:, None] * D + o_d[None, :]
        b_part = tl.load(p_part, mask=m_part, other=0.0, cache_modifier=".cg")  # [BLOCK_M, BLOCK_D]
        new_top = tl.maximum(top, b_lse)
        decay, weight = tl.exp2(top - new_top), tl.exp2(b_lse - new_top)
        total = total * decay + weight
        acc = acc * decay[:, None] + weight[:, None] * b_part
        top = new_top
    return acc / total[:, None]


@triton.jit(do_not_specialize=["slot", "packed", "group", "candidates", "splits", "size", "window"])
def _layer_attention_kernel(
    qkv_ptr, stride_qb, stride_qc, norms, rotary, cache, scratch, slot, lengths_ptr, parts, out_ptr, rows_ptr, packed,
    kv_heads, group, candidates, splits, size, window, scale, softcap,
    D: tl.constexpr, ROTATED: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """One part of the prefix for BLOCK_M query rows of one KV head; the last one there writes the output.

    rows_ptr: of `packed` rows, ascending, those of this sequence are its candidates, at most as many as a tile is for.
    """
    i_m = tl.program_id(0)  # fastest: M blocks of one head run together and share the prefix in L2
    i_bh = tl.program_id(1)
    i_s = tl.program_id(2)
    i_b = (i_bh // kv_heads).to(tl.int64)
    i_h = (i_bh % kv_heads).to(tl.int64)
    o_m = i_m * BLOCK_M + tl.arange(0, BLOCK_M)
    o_d = tl.arange(0, BLOCK_D)
    rows = group * candidates
    m_m = o_m < rows
    o_c = o_m % candidates
    o_h = i_h * group + o_m // candidates
    heads = group * kv_heads
    first = i_b * candidates  # its first row
    if rows_ptr is not None:
        o_r = tl.arange(0, BLOCK_R)
        b_row = tl.load(rows_ptr + o_r, mask=o_r < packed, other=0x7FFFFFFF)  # [BLOCK_R]
        first = tl.sum((b_row < i_b).to(tl.int32), 0).to(tl.int64)
        m_m = m_m & (o_c < tl.sum((b_row == i_b).to(tl.int32), 0))
        o_row = (first + o_c) * stride_qc
        o_cos = (first + o_c) * rotary.stride_b
    else:
        o_row = i_b * stride_qb + o_c * stride_qc
        o_cos = i_b * rotary.stride_b + o_c * rotary.stride_c
    m_md = m_m[:, None] & (o_d < D)[None, :]
    kind = cache.k_ptr.dtype.element_ty
    o_k = o_row + (heads + i_h) * D
    p_v = qkv_ptr + (o_row + (heads + kv_heads + i_h) * D)[:, None] + o_d[None, :]
    q_norm_ptr = None if norms is None else norms.q_ptr
    k_norm_ptr = None if norms is None else norms.k_ptr
    b_q = _rotate(qkv_ptr, o_row + o_h * D, norms, q_norm_ptr, rotary, o_cos, m_m, D, ROTATED, BLOCK_D).to(kind)
    b_k = _rotate(qkv_ptr, o_k, norms, k_norm_ptr, rotary, o_cos, m_m, D, ROTATED, BLOCK_D).to(kind)
    if UPCAST:  # the interpreter computes wrongly in bfloat16
        b_q = b_q.to(tl.float32)
    own = log2_scores(tl.sum(b_q.to(tl.float32) * b_k.to(tl.float32), 1), scale, softcap)
    if i_s == 0:  # of the heads that share a key, the first one's rows put it down
        m_own = m_md & (o_m < candidates)[:, None]
        o_slot = (slot + o_c)[:, None].to(tl.int64)
        stride_kb, stride_ks, stride_kh = scratch.k_strides
        stride_vb, stride_vs, stride_vh = scratch.v_strides
        p_ko = scratch.k_ptr + i_b * stride_kb + o_slot * stride_ks + i_h * stride_kh + o_d[None, :]
        p_vo = scratch.v_ptr + i_b * stride_vb + o_slot * stride_vs + i_h * stride_vh + o_d[None, :]
        tl.store(p_ko, b_k, mask=m_own)
        b_v = tl.load(p_v, mask=m_own, other=0.0)  # [BLOCK_M, BLOCK_D]
        tl.store(p_vo, b_v, mask=m_own)

    # a length past the cache is clamped: wrong at worst, never a wild access
    length = tl.minimum(tl.maximum(tl.load(lengths_ptr + i_b), 0), size).to(tl.int32)
    low, high = prefix_bounds(length, i_s, splits, window, BLOCK_N)
    b_max, b_sum, b_acc = attend_prefix(
        b_q, cache, i_b, i_h, low, high, scale, softcap, D, UPCAST, BLOCK_M, BLOCK_N, BLOCK_D
    )  # fmt: skip

    p_out = out_ptr + ((first + o_c) * heads + o_h)[:, None] * D + o_d[None, :]
    if parts is None:  # one part is the whole prefix
        b_v = tl.load(p_v, mask=m_md, other=0.0).to(tl.float32)  # [BLOCK_M, BLOCK_D]
        top = tl.maximum(b_max, own)
        decay, weight = tl.exp2(b_max - top), tl.exp2(own - top)
        b_out = (b_acc * decay[:, None] + weight[:, None] * b_v) / (b_sum * decay + weight)[:, None]
        tl.store(p_out, b_out.to(out_ptr.dtype.element_ty), mask=m_md)
    else:
        count = tl.num_programs(1).to(tl.int64) * rows
        o_p_row = i_bh.to(tl.int64) * rows + o_m
        o_p = i_s * count + o_p_row
        nothing = b_sum == 0
        b_lse = tl.where(nothing, float("-inf"), b_max + tl.log2(tl.where(nothing, 1.0, b_sum)))
        tl.store(parts.lse_ptr + o_p, b_lse, mask=m_m)
        if high > low:  # what an empty part would have written is not read
            b_part = b_acc / tl.where(nothing, 1.0, b_sum)[:, None]
            tl.store(parts.part_ptr + o_p[:, None] * D + o_d[None, :], b_part, mask=m_md)
        tl.debug_barrier()  # all threads have stored before one of them says so
        p_arrived = parts.arrivals_ptr + i_bh * tl.num_programs(0) + i_m
        arrived = tl.atomic_add(p_arrived, 1, sem="acq_rel", scope="gpu")
        if arrived == splits - 1:
            b_v = tl.load(p_v, mask=m_md, other=0.0).to(tl.float32)  # [BLOCK_M, BLOCK_D]
            b_out = _merge_parts(parts, o_p_row, m_m, own, b_v, count, splits, D, BLOCK_D)
            tl.store(p_out, b_out.to(out_ptr.dtype.element_ty), mask=m_md)


def _check(hidden, cos, sin, k_cache, v_cache, k_scratch, v_scratch, slot, lengths, weights, biases, rows,
           after_norms: bool) -> None:  # fmt: skip
    """Raise TypeError or ValueError naming the argument; nothing was launched yet."""
    check_tensor("hidden", hidden, FLOATS, (None, None, None))
    batch, candidates, width = hidden.shape
    kind, count = (hidden.dtype,), batch * candidates
    shape = (batch, candidates)
    if rows is not None:
        check_tensor("rows", rows, (torch.int64,), (batch,), hidden)
        check(candidates == 1, "hidden must have shape [N, 1, E] with rows", list(hidden.shape), "pass a row each")
        check(rows.is_contiguous(), "rows must be contiguous", rows.stride(), "call .contiguous()")
        batch = lengths.shape[0]
    check(
        1 <= candidates <= MAX_CANDIDATES, f"hidden must have 1 to {MAX_CANDIDATES} candidates", candidates, "use fewer"
    )
    check(count <= MAX_ROWS, f"hidden must have at most {MAX_ROWS} rows", count, "use the model's own layers")
    check(1 <= width <= MAX_WIDTH, f"hidden must be 1 to {MAX_WIDTH} wide", width, "use the model's own layers")
    check_tensor("k_cache", k_cache, kind, (batch, None, None, None), hidden)
    _, kv_heads, size, dim = k_cache.shape
    check_tensor("v_cache", v_cache, kind, tuple(k_cache.shape), hidden)
    check(2 <= dim <= MAX_DIM and dim % 2 == 0, f"k_cache must have an even head dim of 2 to {MAX_DIM}", dim,
          "use the model's own layers")  # fmt: skip
    check_tensor("cos", cos, kind, (*shape, None), hidden)
    turned = cos.shape[2]
    check(2 <= turned <= dim and turned % 2 == 0, f"cos must be an even number of 2 to {dim} wide", turned,
          "pass the dimensions that are rotated")  # fmt: skip
    for name, tensor in (("cos", cos), ("sin", sin)):
        check_tensor(name, tensor, kind, (*shape, turned), hidden)
        check(tensor.stride(2) == 1, f"{name} must have contiguous rows", tensor.stride(), "call .contiguous()")
    check(cos.stride() == sin.stride(), f"sin must have cos's strides {cos.stride()}", sin.stride(), "copy both")
    for name, tensor in (("k_scratch", k_scratch), ("v_scratch", v_scratch)):
        check_tensor(name, tensor, kind, (None, None, kv_heads, dim), hidden)
        fits = tensor.shape[0] >= batch and 0 <= slot <= tensor.shape[1] - candidates
        check(fits, f"{name} must have room for {candidates} candidates of {batch} sequences from slot {slot} on",
              list(tensor.shape), "allocate more")  # fmt: skip
        check(tensor.stride(3) == 1, f"{name} must have contiguous rows", tensor.stride(), "call .contiguous()")
    check_tensor("lengths", lengths, (torch.int64,), (batch,), hidden)
    check(lengths.is_contiguous(), "lengths must be contiguous", lengths.stride(), "call .contiguous()")
    check(hidden.is_contiguous(), "hidden must be contiguous", hidden.stride(), "call .contiguous()")
    _check_weights(hidden, k_cache, weights, biases, after_norms)
    check_lengths(lengths, size)


def _check_weights(hidden, k_cache, weights, biases, after_norms: bool) -> None:
    """As `_check`, of matrices, norms and biases."""
    kind, width = (hidden.dtype,), hidden.shape[2]
    _, kv_heads, _, dim = k_cache.shape
    count = 11 if after_norms else 9
    expected = f"weights must be {count} tensors, or {count + 2} with norms of heads"
    check(len(weights) in (count, count + 2), expected, len(weights), "see the op")
    check(len(biases) == 7, "biases must be 7, of which each may be None", len(biases), "see the op")
    outputs = weights[1].shape[0]
    whole = kv_heads > 0 and outputs % (dim * kv_heads) == 0 and outputs > 0
    check(whole, f"weights[1] must have a multiple of {kv_heads} heads of {dim} rows", outputs, "pass matching heads")
    shapes = {0: (width,), 2: (kv_heads * dim, width), 3: (kv_heads * dim, width), 4: (width, outputs), 5: (width,),
              8: (width, weights[6].shape[0])}  # fmt: skip
    norms = [(dim,)] * (len(weights) - count) + [(width,)] * (count - 9)
    shapes.update(enumerate(norms, start=9))
    if weights[1].dtype in BY_DTYPE:
        for i, (outputs, size_in) in {i: shapes.pop(i) for i in (2, 3, 4, 8)}.items():
            check_tensor(f"weights[{i}]", weights[i], (weights[1].dtype,), (outputs, None), hidden)
            check_packed(f"weights[{i}]", weights[i], size_in, hidden)
    for i, shape in shapes.items():
        check_tensor(f"weights[{i}]", weights[i], kind, shape, hidden)
        check(weights[i].is_contiguous(), f"weights[{i}] must be contiguous", "other strides", "call .contiguous()")


class LayerAttention:
    """The launch for one shape: B sequences of C candidates, H and HK heads of D, S places of the cache.

    arrivals: how many int32 zeros it needs before each launch, 0 if it cuts nothing.
    """

    def __init__(self, batch: int, candidates: int, heads: int, cache: torch.Tensor, head_norms: bool) -> None:
        _, kv_heads, self.size, self.dim = cache.shape
        self.batch, self.candidates, self.heads, self.kv_heads = batch, candidates, heads, kv_heads
        self.rows = heads // kv_heads * candidates
        self.blocks = attention_blocks(self.rows, self.dim, cache.dtype)
        if self.dim > 128 and cache.dtype != torch.float32:
            # own keys beside tiles as wide spill the registers of more rows, and norms of heads those of four warps
            self.blocks = replace(self.blocks, block_m=16, num_warps=8 if head_norms else 4)
        self.tiles = cdiv(self.rows, self.blocks.block_m)
        self.splits = num_splits(batch, kv_heads, self.tiles, self.size, self.blocks.block_n)
        self.one_part = self.splits == 1 and self.blocks.can_finish
        self.arrivals = 0 if self.one_part else batch * kv_heads * self.tiles

    def __call__(
        self, qkv: torch.Tensor, norms: list[torch.Tensor], cos: torch.Tensor, sin: torch.Tensor,
        cache: list[torch.Tensor], scratch: list[torch.Tensor], slot: int, lengths: torch.Tensor,
        arrivals: torch.Tensor, eps: float, offset: float, scale: float, softcap: float | None, window: int | None,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """qkv [B * C, (H + 2 HK) D], cos and sin [B, C, R <= D], contiguous rows -> [B * C, H * D]; packed, [N, ...].

        norms: of queries and keys, or empty; offset: added to their weights. scratch: of keys and of values,
        [B', slots, HK, D], written at slot on.
        """
        batch, candidates, blocks, count = self.batch, self.candidates, self.blocks, self.batch * self.heads
        width = self.heads * self.dim
        out = qkv.new_empty((qkv.shape[0], width), dtype=torch.float32 if INTERPRETED else qkv.dtype)
        parts = None
        if not self.one_part:
            part = qkv.new_empty((self.splits * count * candidates, self.dim), dtype=torch.float32)
            parts = Parts(part, part.new_empty(part.shape[0]), arrivals)
        launch(
            _layer_attention_kernel,
            (self.tiles, batch * self.kv_heads, self.splits),
            {
                "qkv_ptr": qkv, "stride_qb": candidates * qkv.stride(0), "stride_qc": qkv.stride(0),
                "norms": Norms(*norms, eps, offset) if norms else None, "rotary": Rotary(cos, sin, *cos.stride()[:2]),
                "cache": KeysValues(*cache, *(t.stride() for t in cache)),
                "scratch": KeysValues(*scratch, *(t.stride()[:3] for t in scratch)), "slot": slot,
                "lengths_ptr": lengths, "parts": parts, "out_ptr": out, "rows_ptr": rows,
                "packed": 0 if rows is None else rows.shape[0], "kv_heads": self.kv_heads,
                "group": self.heads // self.kv_heads, "candidates": candidates, "splits": self.splits,
                "size": self.size, "window": window, "scale": scale, "softcap": softcap,
                "D": self.dim, "ROTATED": cos.shape[2], "UPCAST": INTERPRETED,
                "BLOCK_R": MAX_ROWS,
                "BLOCK_M": blocks.block_m, "BLOCK_N": blocks.block_n, "BLOCK_D": blocks.block_d,
            },
            num_warps=blocks.num_warps,
            num_stages=blocks.num_stages,
        )  # fmt: skip
        return out.to(qkv.dtype)


def decoder_layer(
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
) -> torch.Tensor:
    """One layer of C candidates of B sequences; arguments and result as in `decoder_layer_ref`.

    Of packed rows a sequence has at most as many as the scratch has slots from `slot` on, others are left out; a row
    has the bits that it has where every sequence carries that many. Up to 64 rows of one dtype, weights contiguous.
    Mutates the scratch. Sums and what lies between two products are float32. Deterministic: the parts of the prefix
    are merged in their order, whichever program does it.

    Raises:
        TypeError, ValueError: naming the argument, before any launch.
    """
    check(family in FAMILIES, f"family must be one of {', '.join(FAMILIES)}", family, "use the model's own layers")
    about, given = FAMILIES[family], (hidden, cos, sin, k_cache, v_cache, k_scratch, v_scratch, slot, lengths)
    _check(*given, weights, biases, rows, about.after_norms)
    check(softcap is None or softcap > 0, "softcap must be above 0 or None", softcap, "pass None for no cap")
    count, candidates, width = hidden.shape
    batch = count if rows is None else lengths.shape[0]
    if rows is not None:
        candidates = k_scratch.shape[1] - slot
    norm1, wq, wk, wv, wo, norm2, wg, wu, wd = weights[:9]
    after, head_norms = (weights[-2:], weights[9:-2]) if about.after_norms else ((), weights[9:])
    attention = LayerAttention(batch, candidates, wq.shape[0] // k_cache.shape[3], k_cache, bool(head_norms))
    arrivals, offset = lengths.new_empty((attention.arrivals,), dtype=torch.int32), about.norm_offset
    x = hidden.reshape(-1, width)
    qkv = product(normed(x, norm1, eps, offset, arrivals), [wq, wk, wv], biases[:3])
    mixed = attention(
        qkv, list(head_norms), cos, sin, [k_cache, v_cache], [k_scratch, v_scratch], slot, lengths, arrivals, eps,
        offset, scale, softcap, window, rows,
    )  # fmt: skip
    if after:
        y, inner = added_and_normed(product(mixed, [wo], [biases[3]]), after[0], x, norm2, eps, offset)
    else:
        y = product(mixed, [wo], [biases[3]], residual=x)
        inner = normed(y, norm2, eps, offset)
    inner = product(inner, [wg, wu], biases[4:6], gated=True, activation=about.activation)
    if after:
        return added(product(inner, [wd], [biases[6]]), after[1], y, eps, offset).view(hidden.shape)
    return product(inner, [wd], [biases[6]], residual=y).view(hidden.shape)
