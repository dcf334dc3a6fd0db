"""Who wins each layer of SynthID's tournament, over whole rows of logits (tournament_ref).

    p <- p (1 + g_l - sum p g_l),   winner_l = argmax { p exp(noise) }              (Dathathri et al. 2024, Nature 634)

What ten layers do to a token depends on its ten bits alone. So a row is read once for ten layers: into 1024 bins of
tokens of equal bits, each with its sum of p and its best token, on which one program then works the layers. Sums are
added in fixed point, and the best token has the greatest key: integers, so programs may come in any order. Nothing is
read back, so that a CUDA graph can hold it.
"""

import torch
import triton
import triton.language as tl

from caw.tournament import MULTIPLIER
from caw.triton_kernels.launching import cdiv, check, check_tensor, launch, next_power_of_2
from caw.triton_kernels.prf import MAX_CONTEXT

BLOCK_V = 1024  # tokens a program
AT_ONCE = tl.constexpr(10)  # layers
BINS = tl.constexpr(1 << 10)
LOW = tl.constexpr(float("-inf"))
# of the hash only bits that find a place in the table are worked out: those of the lower half
FACTOR = tl.constexpr(MULTIPLIER & 0xFFFF_FFFF)
# a p down to 2^-37 is a whole number of these, and a row's sum is about 1
UNITS = tl.constexpr(float(1 << 60))
LAST = tl.constexpr(0x7FFF_FFFF)  # beyond every token id; a key holds what is left to it


@triton.jit
def _survey_kernel(
    warped_ptr, scores_ptr, top_ptr, total_ptr, noise_ptr, bins_ptr, stride_wb, stride_wv, stride_sb, stride_sv,
    vocab_size, cells, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a part of a row: greatest logit (+inf if one is NaN), sum of exp(x - that), greatest noise; empty bins."""
    i_b = tl.program_id(0).to(tl.int64)
    i_p = tl.program_id(1)
    o_v = i_p * BLOCK + tl.arange(0, BLOCK)
    b_x = tl.load(warped_ptr + i_b * stride_wb + o_v.to(tl.int64) * stride_wv, mask=o_v < vocab_size, other=LOW)
    m_x = b_x > LOW
    top = tl.max(tl.where(m_x, b_x, LOW), 0)
    top = tl.where(tl.max((b_x != b_x).to(tl.int32), 0) > 0, float("inf"), top)
    shift = tl.where(tl.abs(top) < float("inf"), top, 0.0)
    total = tl.sum(tl.where(m_x, tl.exp(b_x - shift), 0.0).to(tl.float64), 0)
    b_s = tl.load(scores_ptr + i_b * stride_sb + o_v.to(tl.int64) * stride_sv, mask=m_x, other=0.0)  # [BLOCK]
    place = i_b * tl.num_programs(1) + i_p
    tl.store(top_ptr + place, top)
    tl.store(total_ptr + place, total)
    tl.store(noise_ptr + place, tl.max(tl.where(m_x, b_s - b_x, LOW), 0))
    for start in range(i_p * BLOCK, cells, tl.num_programs(1) * BLOCK):
        o_c = start + tl.arange(0, BLOCK)
        tl.store(bins_ptr + i_b * cells + o_c, tl.full([BLOCK], 0, tl.int64), mask=o_c < cells)


@triton.jit
def _hash(context_ptr, stride_cv, token, W: tl.constexpr):
    """The lower half of each n-gram's hash times the multiplier, uint32."""
    state = tl.full((), 1, tl.uint32)
    for j in tl.static_range(W):
        before = tl.load(context_ptr + j * stride_cv)
        state = (state + tl.where(before < 0, 0, before).to(tl.uint32)) * FACTOR + 1
    return ((state + token.to(tl.uint32)) * FACTOR + 1) * FACTOR


@triton.jit(do_not_specialize=["mask", "group", "count"])
def _bins_kernel(
    warped_ptr, scores_ptr, context_ptr, table_ptr, top_ptr, total_ptr, noise_ptr, factors_ptr, bins_ptr,
    stride_wb, stride_wv, stride_sb, stride_sv, stride_cb, stride_cv, vocab_size, parts, groups, mask, group, count,
    W: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A part of a row into the bins of `count` layers, after the groups of ten before them."""
    i_b = tl.program_id(0).to(tl.int64)
    o_v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    b_x = tl.load(warped_ptr + i_b * stride_wb + o_v.to(tl.int64) * stride_wv, mask=o_v < vocab_size, other=LOW)
    m_x = b_x > LOW
    if tl.max(m_x.to(tl.int32), 0) > 0:
        o_p = tl.arange(0, PARTS)
        b_top = tl.load(top_ptr + i_b * parts + o_p, mask=o_p < parts, other=LOW)  # [PARTS]
        top = tl.max(b_top, 0)
        if top < float("inf"):
            b_total = tl.load(total_ptr + i_b * parts + o_p, mask=o_p < parts, other=0.0)  # [PARTS]
            most = tl.max(tl.load(noise_ptr + i_b * parts + o_p, mask=o_p < parts, other=LOW), 0)
            whole = tl.sum(b_total * tl.exp((b_top - top).to(tl.float64)), 0).to(tl.float32)
            share = tl.div_rn(tl.full((), 1.0, tl.float32), whole)
            b_p = tl.where(m_x, tl.exp(b_x - top), 0.0) * share
            b_s = tl.load(scores_ptr + i_b * stride_sb + o_v.to(tl.int64) * stride_sv, mask=m_x, other=0.0)  # [BLOCK]
            hashed = _hash(context_ptr + i_b * stride_cb, stride_cv, o_v, W)
            pattern = tl.load(table_ptr + (hashed & mask), mask=m_x, other=0)  # [BLOCK]
            for g in range(0, group):
                before = ((pattern >> (g * AT_ONCE)) & (BINS - 1)).to(tl.int32)
                b_p = b_p * tl.load(factors_ptr + (i_b * groups + g) * BINS + before)
            cell = ((pattern >> (group * AT_ONCE)) & ((1 << count) - 1)).to(tl.int32)
            # the rest of a bin's number is the token's, so that few layers do not mean few places to add to
            cell = cell | ((o_v << count) & (BINS - 1))
            p_bin = bins_ptr + (i_b * groups + group) * 2 * BINS + cell
            units = (b_p.to(tl.float64) * UNITS).to(tl.int64)
            tl.atomic_add(p_bin, units, mask=units > 0, sem="relaxed")
            score = b_p * tl.exp(tl.where(m_x, b_s - b_x, LOW) - most)
            key = (score.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (o_v ^ LAST).to(tl.int64)
            tl.atomic_max(p_bin + BINS, key, mask=score > 0.0, sem="relaxed")


@triton.jit(do_not_specialize=["group", "count"])
def _layers_kernel(first_ptr, bins_ptr, factors_ptr, winners_ptr, stride_fb, layers, groups, group, count):
    """`count` layers of one row: their winners, and what they make of a token of each bin."""
    i_b = tl.program_id(0).to(tl.int64)
    o_c = tl.arange(0, BINS)
    p_bin = bins_ptr + (i_b * groups + group) * 2 * BINS + o_c
    b_sum = tl.load(p_bin).to(tl.float64) / UNITS  # [BINS]
    key = tl.load(p_bin + BINS)  # [BINS]
    b_best = (key >> 32).to(tl.int32).to(tl.float32, bitcast=True).to(tl.float64)
    token = (key & LAST) ^ LAST
    b_factor = tl.full([BINS], 1.0, tl.float64)
    p_winner = winners_ptr + i_b * layers + group * AT_ONCE
    winner = tl.load(first_ptr + i_b * stride_fb)
    if group > 0:
        winner = tl.load(p_winner - 1)
    for j in range(0, count):
        bit = ((o_c >> j) & 1) != 0
        mass = tl.sum(tl.where(bit, b_sum, 0.0), 0).to(tl.float32)
        # a mass that rounded above 1 would turn probabilities negative
        grown = tl.where(bit, tl.maximum(2.0 - mass, 0.0), tl.maximum(1.0 - mass, 0.0)).to(tl.float64)
        b_sum *= grown
        b_factor *= grown
        b_best *= grown
        best = tl.max(b_best, 0)
        leader = tl.min(tl.where(b_best == best, token, LAST), 0)
        winner = tl.where(best > 0.0, leader, winner)
        tl.store(p_winner + j, winner)
    tl.store(factors_ptr + (i_b * groups + group) * BINS + o_c, b_factor.to(tl.float32))


def tournament(
    warped: torch.Tensor,
    scores: torch.Tensor,
    first: torch.Tensor,
    context: torch.Tensor,
    table: torch.Tensor,
    layers: int,
) -> torch.Tensor:
    """Winners int64 [B, m] after each of m layers; arguments as in `tournament_ref`, of any strides, W <= 64.

    The bits are exact; probabilities may round elsewhere than the reference's: row `margin/decision`. Deterministic.
    Raises TypeError or ValueError naming the argument, before any launch.
    """
    check_tensor("warped", warped, (torch.float32,), (None, None))
    batch, vocab_size = warped.shape
    check(1 <= vocab_size < 1 << 31, "warped must have 1 to 2**31 - 1 columns", vocab_size, "pass the logits")
    check_tensor("scores", scores, (torch.float32,), (batch, vocab_size), warped)
    check_tensor("first", first, (torch.int64,), (batch,), warped)
    check_tensor("context", context, (torch.int64,), (batch, None), warped)
    width = context.shape[1]
    check(width <= MAX_CONTEXT, f"context must have at most {MAX_CONTEXT} tokens", width, "shorten it")
    check_tensor("table", table, (torch.int32, torch.int64), (None,), warped)
    size = table.shape[0]
    fits = 1 <= size <= 1 << 31 and size & (size - 1) == 0
    check(fits, "table must have a power of two of entries, at most 2**31", size, "use that of `layered_table`")
    bits = 8 * table.itemsize
    check(0 <= layers <= bits, f"layers must be in [0, {bits}], the bits of an entry", layers, "use a wider table")
    check(table.is_contiguous(), "table must be contiguous", f"stride {table.stride()}", "call .contiguous()")
    at_once, bins = int(AT_ONCE), int(BINS)
    parts, groups = cdiv(vocab_size, BLOCK_V), cdiv(layers, at_once)
    winners = first.new_empty((batch, layers))
    top, noise = warped.new_empty((batch, parts)), warped.new_empty((batch, parts))
    total = warped.new_empty((batch, parts), dtype=torch.float64)
    # of each bin its sum and the key of its best token; and what its layers make of a token
    cells = first.new_empty((batch, groups, 2, bins))
    factors = warped.new_empty((batch, groups, bins))
    rows = {
        "warped_ptr": warped, "scores_ptr": scores, "top_ptr": top, "total_ptr": total, "noise_ptr": noise,
        "bins_ptr": cells, "stride_wb": warped.stride(0), "stride_wv": warped.stride(1),
        "stride_sb": scores.stride(0), "stride_sv": scores.stride(1), "vocab_size": vocab_size, "BLOCK": BLOCK_V,
    }  # fmt: skip
    if groups:
        launch(
            _survey_kernel, (batch, parts), {**rows, "cells": groups * 2 * bins}, num_warps=4, enable_fp_fusion=False
        )
    for group in range(groups):
        place = {
            "factors_ptr": factors,
            "groups": groups,
            "group": group,
            "count": min(at_once, layers - group * at_once),
        }
        launch(
            _bins_kernel,
            (batch, parts),
            {
                **rows, **place, "context_ptr": context, "table_ptr": table, "stride_cb": context.stride(0),
                "stride_cv": context.stride(1), "parts": parts, "mask": size - 1, "W": width,
                "PARTS": next_power_of_2(parts),
            },
            num_warps=4,
            enable_fp_fusion=False,
        )  # fmt: skip
        arguments = {
            **place, "first_ptr": first, "bins_ptr": cells, "winners_ptr": winners, "stride_fb": first.stride(0),
            "layers": layers,
        }  # fmt: skip
        launch(_layers_kernel, (batch,), arguments, num_warps=8, enable_fp_fusion=False)
    return winners
