"""What the sampler keeps of rows of logits: temperature, top-k, top-p, min-p, in transformers' order (warp_logits_ref).

A program serves a row and reads it from the second-level cache as often as it needs to. The k-th largest logit, and
the one at which top-p ends, are least by bisection over the bits of ordered keys, two at a reading: counts, and sums of
probabilities, of what lies at or below a trial. Which rows ask for what is read from device tensors: nothing goes back
to the host, so that a CUDA graph can hold it, and a row that asks for nothing is copied.
"""

import torch
import triton
import triton.language as tl

from caw.triton_kernels.launching import check, check_tensor, launch, next_power_of_2
from caw.triton_kernels.topk_softmax import ordered_key

BLOCK_V = 4096
LOW = tl.constexpr(float("-inf"))


@triton.jit
def _keys(p_x, start, vocab_size, BLOCK: tl.constexpr):
    """Logits at `start` on and their keys in the order of the floats, those of -inf beyond the row: [BLOCK]."""
    o_v = start + tl.arange(0, BLOCK)
    b_x = tl.load(p_x + o_v, mask=o_v < vocab_size, other=LOW)  # [BLOCK]
    return b_x, ordered_key(b_x)


@triton.jit
def _powers(b_x, key, least, top):
    """exp(x - top) of what is left, float32."""
    return tl.where(key >= least, tl.exp(b_x - top), 0.0)


@triton.jit
def _top_k_key(p_x, top_k, vocab_size, BLOCK: tl.constexpr):
    """The key of the k-th largest logit."""
    least = tl.full((), 0, tl.uint32)
    unit = tl.full((), 1 << 30, tl.uint32)
    for _ in range(16):  # two bits at a reading: how many keys reach each of three trials
        n1 = tl.full((), 0, tl.int32)
        n2 = tl.full((), 0, tl.int32)
        n3 = tl.full((), 0, tl.int32)
        for start in range(0, vocab_size, BLOCK):
            _x, key = _keys(p_x, start, vocab_size, BLOCK)
            key = tl.where(start + tl.arange(0, BLOCK) < vocab_size, key, 0)
            n1 += tl.sum((key >= least + unit).to(tl.int32), 0)
            n2 += tl.sum((key >= least + 2 * unit).to(tl.int32), 0)
            n3 += tl.sum((key >= least + 3 * unit).to(tl.int32), 0)
        steps = (n1 >= top_k).to(tl.uint32) + (n2 >= top_k).to(tl.uint32) + (n3 >= top_k).to(tl.uint32)
        least += steps * unit
        unit = unit >> 2
    return least


@triton.jit
def _top_p_key(p_x, one_minus_top_p, least, top, highest, vocab_size, BLOCK: tl.constexpr):
    """The key at which the nucleus ends, and how many tokens of that key, those of smallest id, are outside."""
    total = tl.full((), 0.0, tl.float64)
    for start in range(0, vocab_size, BLOCK):
        b_x, key = _keys(p_x, start, vocab_size, BLOCK)
        total += tl.sum(_powers(b_x, key, least, top).to(tl.float64), 0)
    whole = total.to(tl.float32)
    # the greatest key up to which the sum is at most 1 - top_p, and then what is equal to the one above it
    gone = tl.full((), 0, tl.uint32)
    below = tl.full((), 0.0, tl.float64)
    unit = tl.full((), 1 << 30, tl.uint32)
    for _ in range(16):
        s1 = tl.full((), 0.0, tl.float64)
        s2 = tl.full((), 0.0, tl.float64)
        s3 = tl.full((), 0.0, tl.float64)
        for start in range(0, vocab_size, BLOCK):
            b_x, key = _keys(p_x, start, vocab_size, BLOCK)
            b_p = (_powers(b_x, key, least, top) / whole).to(tl.float64)
            s1 += tl.sum(tl.where(key <= gone + unit, b_p, 0.0), 0)
            s2 += tl.sum(tl.where(key <= gone + 2 * unit, b_p, 0.0), 0)
            s3 += tl.sum(tl.where(key <= gone + 3 * unit, b_p, 0.0), 0)
        # never the greatest
        r1 = (s1.to(tl.float32) <= one_minus_top_p) & (gone + unit < highest)
        r2 = (s2.to(tl.float32) <= one_minus_top_p) & (gone + 2 * unit < highest)
        r3 = (s3.to(tl.float32) <= one_minus_top_p) & (gone + 3 * unit < highest)
        below = tl.where(r3, s3, tl.where(r2, s2, tl.where(r1, s1, below)))
        gone += (r1.to(tl.uint32) + r2.to(tl.uint32) + r3.to(tl.uint32)) * unit
        unit = unit >> 2
    border = highest
    for start in range(0, vocab_size, BLOCK):
        _x, key = _keys(p_x, start, vocab_size, BLOCK)
        border = tl.minimum(border, tl.min(tl.where((key > gone) & (key >= least), key, highest), 0))
    each = tl.full((), 0.0, tl.float64)
    equal = tl.full((), 0, tl.int32)
    for start in range(0, vocab_size, BLOCK):
        b_x, key = _keys(p_x, start, vocab_size, BLOCK)
        same = (start + tl.arange(0, BLOCK) < vocab_size) & (key == border)
        b_p = tl.where(same, tl.exp(b_x - top) / whole, 0.0)
        each = tl.maximum(each, tl.max(b_p, 0).to(tl.float64))
        equal += tl.sum(same.to(tl.int32), 0)
    # the j-th of them goes while the sum including it is at most 1 - top_p; bisection, as the sum rises with j
    fewer = tl.full((), 0, tl.int32)
    step = tl.full((), 1 << 30, tl.int32)
    for _ in range(31):
        more = fewer + step
        goes = (more < equal) & ((below + more.to(tl.float64) * each).to(tl.float32) <= one_minus_top_p)
        fewer = tl.where(goes, more, fewer)
        step = step // 2
    return border, fewer


@triton.jit
def _min_p_key(p_x, min_p, least, fewer, top, highest, vocab_size, BLOCK: tl.constexpr):
    """The key of the least likely token that is at least min_p times as likely as the likeliest."""
    total = tl.full((), 0.0, tl.float64)
    border_power = tl.full((), 0.0, tl.float32)
    for start in range(0, vocab_size, BLOCK):
        b_x, key = _keys(p_x, start, vocab_size, BLOCK)
        b_e = _powers(b_x, key, least, top)
        total += tl.sum(b_e.to(tl.float64), 0)
        border_power = tl.maximum(border_power, tl.max(tl.where(key == least, b_e, 0.0), 0))
    whole = (total - fewer.to(tl.float64) * border_power.to(tl.float64)).to(tl.float32)
    limit = min_p * tl.div_rn(tl.full((), 1.0, tl.float32), whole)
    smallest = highest
    for start in range(0, vocab_size, BLOCK):
        b_x, key = _keys(p_x, start, vocab_size, BLOCK)
        likely = (key >= least) & ((_powers(b_x, key, least, top) / whole) >= limit)
        smallest = tl.minimum(smallest, tl.min(tl.where(likely, key, highest), 0))
    return smallest


@triton.jit
def _warp_kernel(
    logits_ptr, wanted_ptr, temperature_ptr, top_k_ptr, one_minus_top_p_ptr, min_p_ptr, out_ptr,
    stride_lb, stride_lv, vocab_size, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row; the result is written first as divided logits, then cut in place."""
    i_b = tl.program_id(0).to(tl.int64)
    p_in = logits_ptr + i_b * stride_lb
    p_out = out_ptr + i_b * vocab_size
    wanted = tl.load(wanted_ptr + i_b).to(tl.int32) != 0
    temperature = tl.load(temperature_ptr + i_b)
    top_k = tl.load(top_k_ptr + i_b)
    one_minus_top_p = tl.load(one_minus_top_p_ptr + i_b)
    min_p = tl.load(min_p_ptr + i_b)
    temperature = tl.where(wanted, temperature, 1.0)
    top = tl.full((), LOW, tl.float32)
    unordered = tl.full((), 0, tl.int32)
    for start in range(0, vocab_size, BLOCK):
        o_v = start + tl.arange(0, BLOCK)
        m_v = o_v < vocab_size
        b_x = tl.load(p_in + o_v.to(tl.int64) * stride_lv, mask=m_v, other=LOW)  # [BLOCK]
        b_x = tl.where(temperature == 1.0, b_x, tl.div_rn(b_x, tl.full([BLOCK], 0.0, tl.float32) + temperature))
        tl.store(p_out + o_v, b_x, mask=m_v)
        unordered += tl.sum((b_x != b_x).to(tl.int32), 0)
        top = tl.maximum(top, tl.max(tl.where(b_x != b_x, LOW, b_x), 0))
    tl.debug_barrier()  # the program reads what its other threads stored
    limited = (top_k >= 1) & (top_k < vocab_size)
    sound = wanted & (unordered == 0) & (tl.abs(top) < float("inf"))
    if sound & (limited | (one_minus_top_p >= 0) | (min_p > 0)):
        highest = ordered_key(top)
        # what is left: keys from `least` on, of those equal to it all but `fewer` of smallest id
        least = ordered_key(tl.full((), LOW, tl.float32)) + tl.full((), 1, tl.uint32)  # the key above that of -inf
        fewer = tl.full((), 0, tl.int32)
        if limited:
            least = tl.maximum(least, _top_k_key(p_out, top_k, vocab_size, BLOCK))
        if one_minus_top_p >= 0:
            least, fewer = _top_p_key(p_out, one_minus_top_p, least, top, highest, vocab_size, BLOCK)
        if min_p > 0:
            smallest = _min_p_key(p_out, min_p, least, fewer, top, highest, vocab_size, BLOCK)
            fewer = tl.where(smallest > least, 0, fewer)
            least = smallest
        seen = tl.full((), 0, tl.int32)
        for start in range(0, vocab_size, BLOCK):
            o_v = start + tl.arange(0, BLOCK)
            m_v = o_v < vocab_size
            b_x, key = _keys(p_out, start, vocab_size, BLOCK)
            same = (m_v & (key == least)).to(tl.int32)
            goes = (key < least) | ((key == least) & (seen + tl.cumsum(same, 0) <= fewer))
            seen += tl.sum(same, 0)
            tl.store(p_out + o_v, tl.where(goes, LOW, b_x), mask=m_v)


def warp_logits(
    logits: torch.Tensor,
    wanted: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    one_minus_top_ps: torch.Tensor,
    min_ps: torch.Tensor,
) -> torch.Tensor:
    """Warped logits float32 [B, V]; arguments as in `warp_logits_ref`, logits of any strides.

    Exponentials and sums may round elsewhere than the reference's: row `margin/nucleus`. Raises TypeError or ValueError
    naming the argument, before any launch.
    """
    check_tensor("logits", logits, (torch.float32,), (None, None))
    batch, vocab_size = logits.shape
    check(1 <= vocab_size < 1 << 30, "logits must have 1 to 2**30 - 1 columns", vocab_size, "pass the logits")
    check_tensor("wanted", wanted, (torch.bool,), (batch,), logits)
    check_tensor("top_ks", top_ks, (torch.int64,), (batch,), logits)
    numbers = {"temperatures": temperatures, "one_minus_top_ps": one_minus_top_ps, "min_ps": min_ps}
    for name, tensor in numbers.items():
        check_tensor(name, tensor, (torch.float32,), (batch,), logits)
    for name, tensor in {"wanted": wanted, "top_ks": top_ks, **numbers}.items():
        check(tensor.is_contiguous(), f"{name} must be contiguous", f"stride {tensor.stride()}", "call .contiguous()")
    out = torch.empty((batch, vocab_size), dtype=torch.float32, device=logits.device)
    launch(
        _warp_kernel,
        (batch,),
        {
            "logits_ptr": logits, "wanted_ptr": wanted, "temperature_ptr": temperatures, "top_k_ptr": top_ks,
            "one_minus_top_p_ptr": one_minus_top_ps, "min_p_ptr": min_ps, "out_ptr": out,
            "stride_lb": logits.stride(0), "stride_lv": logits.stride(1), "vocab_size": vocab_size,
            "BLOCK": min(BLOCK_V, next_power_of_2(vocab_size)),
        },
        num_warps=8,
        enable_fp_fusion=False,
    )  # fmt: skip
    return out
