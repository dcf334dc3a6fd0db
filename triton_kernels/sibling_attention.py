"""Attention of C sibling candidates over the committed prefix and themselves, as split-KV flash decoding.

    out_c = softmax([ scale q_c . K[first : T] , scale q_c . k_c ]) . [ V[first : T] ; v_c ]    (sibling_attention_ref)

No tree mask: a length, and one own key and value per candidate (paper, appendix "Explanations on Multi-branch
Pre-generation Mechanism", read so that a candidate sees itself). The C * H / HK query rows that share a KV head form
one tile, so the prefix is read once whatever C is. The prefix is cut into S parts; each gives (o_s, e_s), its output
and base-2 logsumexp, and with the own score s and the sink z

    out = (sum_s 2^(e_s - m) o_s + 2^(s - m) v_c) / (sum_s 2^(e_s - m) + 2^(s - m) + 2^(z - m)),   m = the maximum

S and the grid depend on shapes only, the loop bounds on the lengths in device memory. With S = 1 the first kernel
finishes by itself, unless its tile is too large to.
"""

import math
from collections import namedtuple

import torch
import triton
import triton.language as tl

from caw.triton_kernels.block_sizes import attention_blocks, num_splits
from caw.triton_kernels.launching import FLOATS, INTERPRETED, cdiv, check, check_lengths, check_tensor, launch

LOG2E = tl.constexpr(math.log2(math.e))
MAX_CANDIDATES = 32
MAX_DIM = 256
# Arguments that kernels are given together. What must not specialise a kernel stands alone: do_not_specialize does not
# reach the members of a tuple.
KeysValues = namedtuple("KeysValues", "k_ptr v_ptr k_strides v_strides")


@triton.jit
def log2_scores(raw, scale, softcap):
    """q . k -> base-2 scores; softcap may be None. tanh(x) = (1 - e) / (1 + e), e = exp(-2 |x|), never overflows."""
    if softcap is not None:
        x = raw * (scale / softcap)
        e = tl.exp(-2.0 * tl.abs(x))
        t = (1.0 - e) / (1.0 + e)
        return tl.where(x < 0, -t, t) * (softcap * LOG2E)
    return raw * (scale * LOG2E)


@triton.jit
def _finite(x):
    """-inf -> 0, so that 2^(-inf - m) is 0 and never NaN."""
    return tl.where(x == float("-inf"), 0.0, x)


@triton.jit
def prefix_bounds(length, i_s, splits, window, BLOCK_N: tl.constexpr):
    """First and last + 1 position of part i_s of the prefix that a window (None: there is none) leaves."""
    first = length * 0
    if window is not None:
        first = tl.maximum(length - window + 1, 0)
    chunk = tl.cdiv(tl.cdiv(length - first, splits), BLOCK_N) * BLOCK_N
    low = first + i_s * chunk
    return low, tl.minimum(low + chunk, length)


@triton.jit
def attend_prefix(
    b_q, cache, i_b, i_h, low, high, scale, softcap, D: tl.constexpr, UPCAST: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Greatest base-2 score, sum of weights and weighted sum of values of queries b_q [BLOCK_M, BLOCK_D] over positions
    low to high. i_b, i_h: int64."""
    stride_kb, stride_kh, stride_kn, stride_kd = cache.k_strides
    stride_vb, stride_vh, stride_vn, stride_vd = cache.v_strides
    o_n = tl.arange(0, BLOCK_N)
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < D
    b_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_M], tl.float32)
    b_acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(low, high, BLOCK_N):
        m_n = start + o_n < high
        m_nd = m_n[:, None] & m_d[None, :]
        # one 64-bit offset per block, 32-bit ones inside the tile
        begin = start + (i_b * 0)
        p_k = cache.k_ptr + (i_b * stride_kb + i_h * stride_kh + begin * stride_kn) + (o_n * stride_kn)[:, None]
        p_v = cache.v_ptr + (i_b * stride_vb + i_h * stride_vh + begin * stride_vn) + (o_n * stride_vn)[:, None]
        b_k = tl.load(p_k + o_d[None, :] * stride_kd, mask=m_nd, other=0.0)  # [BLOCK_N, BLOCK_D]
        b_v = tl.load(p_v + o_d[None, :] * stride_vd, mask=m_nd, other=0.0)  # [BLOCK_N, BLOCK_D]
        if UPCAST:
            b_k = b_k.to(tl.float32)
            b_v = b_v.to(tl.float32)
        raw = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
        scores = tl.where(m_n[None, :], log2_scores(raw, scale, softcap), float("-inf"))
        new_max = tl.maximum(b_max, tl.max(scores, 1))
        shift = _finite(new_max)
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(b_max - shift)
        b_sum = b_sum * decay + tl.sum(weights, 1)
        b_acc = b_acc * decay[:, None]
        b_acc = tl.dot(weights.to(b_v.dtype), b_v, b_acc, input_precision="ieee")
        b_max = new_max
    return b_max, b_sum, b_acc


@triton.jit(do_not_specialize=["group", "candidates", "splits", "size", "window"])
def _split_kernel(
    q_ptr, q_strides, cache, own, lengths_ptr, rows_ptr, sinks_ptr, out_ptr, out_strides, lse_ptr,
    kv_heads, group, candidates, splits, size, window, scale, softcap,
    D: tl.constexpr, FUSED: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One part of the prefix for BLOCK_M query rows of one KV head. rows_ptr: whose prefix, None = each its own.

    Writes o_s float32 [splits, B * H * C, D] and e_s [splits, B * H * C], or if FUSED (one part) the output itself.
    """
    tl.static_assert(BLOCK_D >= D)
    stride_qb, stride_qh, stride_qc, stride_qd = q_strides
    i_m = tl.program_id(0)  # fastest: M blocks of one head run together and share the prefix in L2
    i_bh = tl.program_id(1)
    i_s = tl.program_id(2)
    # int64: i_b * stride exceeds 2**31 at B = 64, T = 32k
    i_b = (i_bh // kv_heads).to(tl.int64)
    i_h = (i_bh % kv_heads).to(tl.int64)
    o_m = i_m * BLOCK_M + tl.arange(0, BLOCK_M)
    o_d = tl.arange(0, BLOCK_D)
    rows = group * candidates
    m_m = o_m < rows
    m_d = o_d < D
    m_md = m_m[:, None] & m_d[None, :]
    o_c = o_m % candidates
    o_h = i_h * group + o_m // candidates

    p_q = q_ptr + i_b * stride_qb + o_h[:, None] * stride_qh + o_c[:, None] * stride_qc + o_d[None, :] * stride_qd
    b_q = tl.load(p_q, mask=m_md, other=0.0)  # [BLOCK_M, BLOCK_D]
    if UPCAST:  # the interpreter computes wrongly in bfloat16
        b_q = b_q.to(tl.float32)

    # a length past the cache is clamped: wrong at worst, never a wild access
    i_t = i_b if rows_ptr is None else tl.load(rows_ptr + i_b)
    length = tl.minimum(tl.maximum(tl.load(lengths_ptr + i_t), 0), size).to(tl.int32)
    low, high = prefix_bounds(length, i_s, splits, window, BLOCK_N)
    b_max, b_sum, b_acc = attend_prefix(
        b_q, cache, i_t, i_h, low, high, scale, softcap, D, UPCAST, BLOCK_M, BLOCK_N, BLOCK_D
    )  # fmt: skip

    o_r = i_bh.to(tl.int64) * rows + o_m  # (b * H + h) * C + c: output rows of one KV head are neighbours
    if FUSED:
        stride_kb, stride_kh, stride_kc, stride_kd = own.k_strides
        stride_vb, stride_vh, stride_vc, stride_vd = own.v_strides
        p_ko = own.k_ptr + i_b * stride_kb + i_h * stride_kh + o_c[:, None] * stride_kc + o_d[None, :] * stride_kd
        p_vo = own.v_ptr + i_b * stride_vb + i_h * stride_vh + o_c[:, None] * stride_vc + o_d[None, :] * stride_vd
        b_ko = tl.load(p_ko, mask=m_md, other=0.0).to(tl.float32)  # [BLOCK_M, BLOCK_D]
        b_vo = tl.load(p_vo, mask=m_md, other=0.0).to(tl.float32)  # [BLOCK_M, BLOCK_D]
        own_score = log2_scores(tl.sum(b_q.to(tl.float32) * b_ko, 1), scale, softcap)
        top = tl.maximum(b_max, own_score)
        if sinks_ptr is not None:
            sink = tl.load(sinks_ptr + o_h, mask=m_m, other=0.0).to(tl.float32) * LOG2E
            top = tl.maximum(top, sink)
        decay = tl.exp2(b_max - top)
        own_weight = tl.exp2(own_score - top)
        total = b_sum * decay + own_weight
        if sinks_ptr is not None:
            total += tl.exp2(sink - top)
        b_out = (b_acc * decay[:, None] + own_weight[:, None] * b_vo) / total[:, None]
        stride_ob, stride_oh, stride_oc = out_strides
        p_out = out_ptr + i_b * stride_ob + o_h[:, None] * stride_oh + o_c[:, None] * stride_oc + o_d[None, :]
        tl.store(p_out, b_out.to(out_ptr.dtype.element_ty), mask=m_md)
    else:
        o_p = i_s.to(tl.int64) * tl.num_programs(1) * rows + o_r
        # asked so that a NaN is none of the empty ones: it must reach the output, not vanish with its part
        nothing = b_sum == 0
        b_lse = tl.where(nothing, float("-inf"), b_max + tl.log2(tl.where(nothing, 1.0, b_sum)))
        tl.store(lse_ptr + o_p, b_lse, mask=m_m)
        if high > low:  # the combine step does not read what an empty part would have written
            b_out = b_acc / tl.where(nothing, 1.0, b_sum)[:, None]
            tl.store(out_ptr + o_p[:, None] * D + o_d[None, :], b_out, mask=m_md)


@triton.jit(do_not_specialize=["group", "candidates", "splits"])
def _combine_kernel(
    part_ptr, lse_ptr, q_ptr, q_strides, own, sinks_ptr, out_ptr, out_strides, heads, group, candidates, splits,
    scale, softcap, D: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One output row: the parts, the own token and the sink merged by logsumexp."""
    stride_qb, stride_qh, stride_qc, stride_qd = q_strides
    stride_kb, stride_kh, stride_kc, stride_kd = own.k_strides
    stride_vb, stride_vh, stride_vc, stride_vd = own.v_strides
    stride_ob, stride_oh, stride_oc = out_strides
    i_r = tl.program_id(0).to(tl.int64)
    count = tl.num_programs(0).to(tl.int64)
    i_c = i_r % candidates
    i_h = (i_r // candidates) % heads
    i_b = i_r // (candidates * heads)
    i_g = i_h // group
    o_s = tl.arange(0, BLOCK_S)
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < D

    b_lse = tl.load(lse_ptr + o_s * count + i_r, mask=o_s < splits, other=float("-inf"))  # [BLOCK_S]
    p_q = q_ptr + i_b * stride_qb + i_h * stride_qh + i_c * stride_qc + o_d * stride_qd
    p_ko = own.k_ptr + i_b * stride_kb + i_g * stride_kh + i_c * stride_kc + o_d * stride_kd
    p_vo = own.v_ptr + i_b * stride_vb + i_g * stride_vh + i_c * stride_vc + o_d * stride_vd
    b_q = tl.load(p_q, mask=m_d, other=0.0).to(tl.float32)  # [BLOCK_D]
    b_ko = tl.load(p_ko, mask=m_d, other=0.0).to(tl.float32)  # [BLOCK_D]
    b_vo = tl.load(p_vo, mask=m_d, other=0.0).to(tl.float32)  # [BLOCK_D]
    m_s = b_lse != float("-inf")  # NaN is not
    p_part = part_ptr + (o_s[:, None] * count + i_r) * D + o_d[None, :]
    b_part = tl.load(p_part, mask=m_s[:, None] & m_d[None, :], other=0.0)  # [BLOCK_S, BLOCK_D]

    own_score = log2_scores(tl.sum(b_q * b_ko, 0), scale, softcap)
    top = tl.maximum(tl.max(b_lse, 0), own_score)
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + i_h).to(tl.float32) * LOG2E
        top = tl.maximum(top, sink)
    weights = tl.exp2(b_lse - top)
    own_weight = tl.exp2(own_score - top)
    total = tl.sum(weights, 0) + own_weight
    if sinks_ptr is not None:
        total += tl.exp2(sink - top)
    b_out = (tl.sum(weights[:, None] * b_part, 0) + own_weight * b_vo) / total
    p_out = out_ptr + i_b * stride_ob + i_h * stride_oh + i_c * stride_oc + o_d
    tl.store(p_out, b_out.to(out_ptr.dtype.element_ty), mask=m_d)


def _check(q, k_cache, v_cache, k_own, v_own, lengths, window, softcap, sinks, rows) -> None:
    """Raise TypeError or ValueError naming the argument; nothing was launched yet."""
    check_tensor("q", q, FLOATS, (None, None, None, None))
    batch, heads, candidates, dim = q.shape
    texts = batch if rows is None else lengths.shape[0]
    check_tensor("k_cache", k_cache, (q.dtype,), (texts, None, None, dim), q)
    kv_heads = k_cache.shape[1]
    check_tensor("v_cache", v_cache, (q.dtype,), tuple(k_cache.shape), q)
    check_tensor("k_own", k_own, (q.dtype,), (batch, kv_heads, candidates, dim), q)
    check_tensor("v_own", v_own, (q.dtype,), (batch, kv_heads, candidates, dim), q)
    if rows is not None:
        check_tensor("rows", rows, (torch.int64,), (batch,), q)
        check(rows.is_contiguous(), "rows must be contiguous", f"stride {rows.stride()}", "call .contiguous()")
    check_tensor("lengths", lengths, (torch.int64,), (texts,), q)
    check(lengths.is_contiguous(), "lengths must be contiguous", f"stride {lengths.stride()}", "call .contiguous()")
    check(1 <= candidates <= MAX_CANDIDATES, f"q must have 1 to {MAX_CANDIDATES} candidates", candidates, "use fewer")
    check(1 <= dim <= MAX_DIM, f"q must have a head dim of 1 to {MAX_DIM}", dim, "use the reference")
    divides = kv_heads > 0 and heads % kv_heads == 0
    check(divides, f"q must have a multiple of {kv_heads} heads, the cache's", heads, "pass matching heads")
    check(window is None or window >= 1, "window must be at least 1 or None", window, "pass None for no window")
    check(softcap is None or softcap > 0, "softcap must be above 0 or None", softcap, "pass None for no cap")
    if sinks is not None:
        check_tensor("sinks", sinks, FLOATS, (heads,), q)
        check(sinks.is_contiguous(), "sinks must be contiguous", f"stride {sinks.stride()}", "call .contiguous()")
    check_lengths(lengths, k_cache.shape[2])


def _launch(q, k_cache, v_cache, k_own, v_own, lengths, scale, window, softcap, sinks, rows):
    """Start the split kernel and, with more than one part, the combine kernel; returns the output."""
    _check(q, k_cache, v_cache, k_own, v_own, lengths, window, softcap, sinks, rows)
    batch, heads, candidates, dim = q.shape
    _, kv_heads, size, _ = k_cache.shape
    group = heads // kv_heads
    blocks = attention_blocks(group * candidates, dim, q.dtype)
    m_blocks = cdiv(group * candidates, blocks.block_m)
    splits = num_splits(batch, kv_heads, m_blocks, size, blocks.block_n)
    # the interpreter truncates to bfloat16 where a GPU rounds: there, let torch round
    out = q.new_empty((batch, candidates, heads, dim), dtype=torch.float32 if INTERPRETED else q.dtype).transpose(1, 2)
    count = batch * heads * candidates
    fused = splits == 1 and blocks.can_finish
    part = out if fused else q.new_empty((splits, count, dim), dtype=torch.float32)
    lse = q.new_empty((1,) if fused else (splits, count), dtype=torch.float32)
    shared = {
        "q_ptr": q, "q_strides": q.stride(), "own": KeysValues(k_own, v_own, k_own.stride(), v_own.stride()),
        "sinks_ptr": sinks, "out_strides": out.stride()[:3], "group": group, "candidates": candidates, "splits": splits,
        "lse_ptr": lse, "scale": scale, "softcap": softcap, "D": dim, "BLOCK_D": blocks.block_d,
    }  # fmt: skip
    launch(
        _split_kernel,
        (m_blocks, batch * kv_heads, splits),
        {
            **shared, "cache": KeysValues(k_cache, v_cache, k_cache.stride(), v_cache.stride()),
            "rows_ptr": rows, "lengths_ptr": lengths, "out_ptr": part, "kv_heads": kv_heads, "size": size,
            "window": window, "FUSED": fused, "UPCAST": INTERPRETED,
            "BLOCK_M": blocks.block_m, "BLOCK_N": blocks.block_n,
        },
        num_warps=blocks.num_warps,
        num_stages=blocks.num_stages,
    )  # fmt: skip
    if not fused:
        block_s = triton.next_power_of_2(splits)
        launch(
            _combine_kernel,
            (count,),
            {**shared, "part_ptr": part, "out_ptr": out, "heads": heads, "BLOCK_S": block_s},
            num_warps=8 if block_s * blocks.block_d > 8192 else 4,
        )
    return out.to(q.dtype)


def sibling_attention(
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
    """Attention of sibling candidates; arguments and result as in `sibling_attention_ref`.

    q [B, H, C, D], caches [B, HK, S, D], own [B, HK, C, D], all of one dtype, any strides; lengths int64 [B] in device
    memory. The output lies in memory as [B, C, H, D]. Accumulates in float32; the weights meet V in q's dtype.
    Deterministic: fixed order, no atomics. Reads 2 * B * HK * T * D elements of the prefix once for up to 64 rows
    C * H / HK, once per 64 rows above.

    Raises:
        TypeError, ValueError: naming the argument, before any launch. Lengths past the cache are found on a GPU only
            with TRITON_DEBUG=1 (finding them has to wait for the device); without it they are clamped.
    """
    return _launch(q, k_cache, v_cache, k_own, v_own, lengths, scale, window, softcap, sinks, None)


def sibling_attention_packed(
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
    """The same of candidates of one row each; arguments and result as in `sibling_attention_packed_ref`.

    `rows` is not checked against B: that would have to wait for the device.
    """
    return _launch(q, k_cache, v_cache, k_own, v_own, lengths, scale, window, softcap, sinks, rows)
