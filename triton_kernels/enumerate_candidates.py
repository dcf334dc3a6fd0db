"""The ladder of each row on the device: who could be chosen, and from which strength on (enumerate_candidates_ref).

Green lists, two rungs: the likeliest token and the likeliest green one. One program a row walks the record; rows whose
record holds no green token while one beyond it could be reached are scanned by `green_argmax`, which costs the others
one load; a last kernel puts the rungs together. Races: one program a row makes the race values in float64 and keeps
either the records of a running argmax (top_k) or the upper envelope of the lines start + strength * slope (scale).

Each row's key lies in device memory: a graph that captures the launches captures no key.
Fused multiply-add is off, because fl32(l + fl32(strength * delta)) must round twice.
"""

import torch
import triton
import triton.language as tl

from caw.ladder import rungs
from caw.op_indices import RACE_SCALE, RACE_TOP_K, SELFHASH
from caw.triton_kernels.green_argmax import green_argmax
from caw.triton_kernels.launching import FLOATS, check, check_tensor, launch
from caw.triton_kernels.prf import LIST_BITS, absorb_context, absorb_pair, check_prf, gumbel, key_words, token_word

MAX_K = 128
INFINITY_32 = tl.constexpr(float("inf"))


@triton.jit
def first_green(p_id, p_value, p_context, lo, hi, threshold, full, max_strength, K,
                W: tl.constexpr, SELFHASH_LIST: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """(token, logit) of the first green token of a row's record, -1 and -inf for none; whether one beyond is wanted."""
    o_k = tl.arange(0, BLOCK_K)
    m_k = o_k < K
    b_id = tl.load(p_id + o_k, mask=m_k, other=0)  # [BLOCK_K]
    b_value = tl.load(p_value + o_k, mask=m_k, other=float("-inf"))  # [BLOCK_K]
    token = b_id.to(tl.uint32)
    if SELFHASH_LIST:
        s0, s1, s2, s3 = absorb_context(p_context, lo, hi, 1)
        word = token_word(token, s0, s1, s2, s3, lo, hi)
        for i in tl.static_range(1, W):
            s0, s1, s2, s3 = absorb_context(p_context + i, lo, hi, 1)
            word = tl.minimum(word, token_word(token, s0, s1, s2, s3, lo, hi))
        s0, s1, s2, s3 = absorb_pair(word, token, lo, hi)
        word = token_word(token, s0, s1, s2, s3, lo, hi)
    else:
        s0, s1, s2, s3 = absorb_context(p_context, lo, hi, W)
        word = token_word(token, s0, s1, s2, s3, lo, hi)
    green = m_k & ((word >> 8).to(tl.int32) < threshold) & (b_value > float("-inf"))
    first = tl.min(tl.where(green, o_k, BLOCK_K), 0)
    there = first < BLOCK_K
    at = o_k == first
    chosen = tl.where(there, tl.sum(tl.where(at, b_id, 0), 0), -1)
    # a sum of one value and zeros would turn -0.0 into 0.0 and must not meet -inf: a maximum keeps the bits
    logit = tl.max(tl.where(at, b_value, float("-inf")), 0)
    last = tl.max(tl.where(o_k == K - 1, b_value, float("-inf")), 0)
    best = tl.max(tl.where(o_k == 0, b_value, float("-inf")), 0)
    beyond = (last > float("-inf")) & (last + max_strength * full >= best)
    return chosen, logit, (there == 0) & beyond


@triton.jit
def _green_kernel(
    values_ptr, ids_ptr, context_ptr, key_ptr, token_ptr, logit_ptr, wanted_ptr,
    stride_vb, stride_ib, stride_cb, threshold, full, max_strength, K,
    W: tl.constexpr, SELFHASH_LIST: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The first green token of a row's record, or that the vocabulary must be scanned."""
    i_b = tl.program_id(0).to(tl.int64)
    lo, hi = key_words(key_ptr + i_b)
    token, logit, wanted = first_green(
        ids_ptr + i_b * stride_ib, values_ptr + i_b * stride_vb, context_ptr + i_b * stride_cb, lo, hi, threshold,
        full, max_strength, K, W, SELFHASH_LIST, BLOCK_K,
    )  # fmt: skip
    tl.store(token_ptr + i_b, token)
    tl.store(logit_ptr + i_b, logit)
    tl.store(wanted_ptr + i_b, wanted)


@triton.jit
def two_rungs(p_candidate, p_need, original, logit, green, green_logit, full, max_strength):
    """The ladder of a row from its likeliest token and its likeliest green one (-1: none); stored but for its count."""
    there = green >= 0
    second_logit = tl.where(there, green_logit, logit)
    boosted = second_logit + max_strength * full
    over = (boosted > logit) | ((boosted == logit) & (green < original))
    reached = over & there & (green != original)
    tl.store(p_candidate, original)
    tl.store(p_candidate + 1, tl.where(reached, green, original))
    tl.store(p_need, logit)
    tl.store(p_need + 1, second_logit)
    return 1 + reached.to(tl.int64)


@triton.jit
def _reweight_kernel(
    values_ptr, ids_ptr, token_ptr, logit_ptr, wanted_ptr, scanned_ptr, scanned_logit_ptr,
    candidates_ptr, needs_ptr, counts_ptr, stride_vb, stride_ib, full, max_strength,
):  # fmt: skip
    """Two rungs of one row."""
    i_b = tl.program_id(0).to(tl.int64)
    wanted = tl.load(wanted_ptr + i_b) != 0
    green = tl.where(wanted, tl.load(scanned_ptr + i_b), tl.load(token_ptr + i_b))
    green_logit = tl.where(wanted, tl.load(scanned_logit_ptr + i_b), tl.load(logit_ptr + i_b))
    original, logit = tl.load(ids_ptr + i_b * stride_ib), tl.load(values_ptr + i_b * stride_vb)
    count = two_rungs(
        candidates_ptr + 2 * i_b, needs_ptr + 2 * i_b, original, logit, green, green_logit, full, max_strength
    )
    tl.store(counts_ptr + i_b, count)


@triton.jit
def _later_if_better(race_a, id_a, at_a, race_b, id_b, at_b):
    """Running argmax: a later entry wins by a greater value, or an equal one with the smaller id."""
    better = (race_b > race_a) | ((race_b == race_a) & (id_b < id_a))
    return tl.where(better, race_b, race_a), tl.where(better, id_b, id_a), tl.where(better, at_b, at_a)


@triton.jit
def _below(x):
    """The next smaller float32."""
    bits = x.to(tl.int32, bitcast=True)
    down = tl.where(x > 0, bits - 1, bits + 1)
    down = tl.where(x == 0, -2147483647, down)  # the smallest negative number, 0x80000001
    return tl.where(x == float("-inf"), x, down.to(tl.float32, bitcast=True))


@triton.jit
def _floor32(x):
    y = x.to(tl.float32)
    return tl.where(y.to(tl.float64) > x, _below(y), y)


@triton.jit
def _ceil32(x):
    return -_floor32(-x)


@triton.jit
def _envelope(candidates_ptr, needs_ptr, b_id, start, slope, o_k, max_strength, K, BLOCK_K: tl.constexpr):
    """Walk the upper envelope of the lines from strength 0; stores all rungs after the first, returns their number.

    Step for step `race_ladder_scale`: where several lines meet the steepest goes on, then the smaller id. At most K
    rungs: logits that are infinite or NaN must not keep the device for ever.
    """
    low = float("-inf")
    here_start = tl.max(tl.where(o_k == 0, start, low), 0)
    here_slope = tl.max(tl.where(o_k == 0, slope, low), 0)
    here_id = tl.max(tl.where(o_k == 0, b_id, -1), 0)
    at = here_start * 0.0
    count = tl.full((), 1, tl.int32)
    going = tl.full((), 1, tl.int32)
    while going > 0:
        rise = slope - here_slope
        usable = (rise > 0) & (start > low)
        crossing = (here_start - start) / tl.where(usable, rise, 1.0)
        crossing = tl.where(usable, tl.maximum(crossing, 0.0), float("inf"))
        crossing = tl.maximum(crossing, at)
        nearest = tl.min(crossing, 0)
        among = crossing == nearest
        best = tl.max(tl.where(among, slope, low), 0)
        next_id = tl.min(tl.where(among & (slope == best), b_id, 0x7FFFFFFFFFFFFFFF), 0)
        need = tl.where(next_id < here_id, _below(_ceil32(nearest)), _floor32(nearest))
        going = ((need < max_strength) & (count < K)).to(tl.int32)
        if going > 0:
            tl.store(candidates_ptr + count, next_id)
            tl.store(needs_ptr + count, need)
            here = o_k == tl.min(tl.where(among & (slope == best) & (b_id == next_id), o_k, BLOCK_K), 0)
            here_start = tl.max(tl.where(here, start, low), 0)
            here_slope = best
            here_id = next_id
            at = nearest
            count += 1
    return count


@triton.jit
def race_rungs(p_id, p_value, p_race, p_context, lo, hi, p_candidate, p_need, max_strength, K, M,
               W: tl.constexpr, SCALE: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """The race of one row: its ladder, stored but for its count, which is returned as int32."""
    o_k = tl.arange(0, BLOCK_K)
    m_k = o_k < K
    s0, s1, s2, s3 = absorb_context(p_context, lo, hi, W)
    b_id = tl.load(p_id + o_k, mask=m_k, other=0)  # [BLOCK_K]
    b_value = tl.load(p_value + o_k, mask=m_k, other=float("-inf"))  # [BLOCK_K]
    b_race = tl.load(p_race + o_k, mask=m_k, other=0.0)  # [BLOCK_K]
    race = b_race.to(tl.float64) + gumbel(token_word(b_id.to(tl.uint32), s0, s1, s2, s3, lo, hi))
    race = tl.where(b_value > float("-inf"), race, float("-inf"))
    return rungs_of_race(
        b_id, b_value, race, tl.load(p_id), p_candidate, p_need, max_strength, K, M, SCALE, BLOCK_K
    )  # fmt: skip


@triton.jit
def rungs_of_race(b_id, b_value, race, original, p_candidate, p_need, max_strength, K, M,
                  SCALE: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """The ladder of one row from its race values float64 [BLOCK_K], as `race_rungs`."""
    o_k = tl.arange(0, BLOCK_K)
    if SCALE:
        start = b_value.to(tl.float64)
        slope = tl.where(race > float("-inf"), race - start, float("-inf"))
        count = _envelope(p_candidate, p_need, b_id, start, slope, o_k, max_strength, K, BLOCK_K)
        tl.store(p_candidate, original)
        tl.store(p_need, float("-inf"))
    else:
        m_m = o_k < M
        _, _, winner = tl.associative_scan((race, b_id, o_k), 0, _later_if_better)
        is_record = m_m & ((o_k == 0) | ((winner == o_k) & (race > float("-inf"))))
        slot = tl.cumsum(is_record.to(tl.int32), 0) - 1
        count = tl.sum(is_record.to(tl.int32), 0)
        tl.store(p_candidate + slot, b_id, mask=is_record)
        tl.store(p_need + slot, (o_k + 1).to(tl.float32), mask=is_record)
    m_rest = (o_k >= count) & (o_k < M)
    tl.store(p_candidate + o_k, original + o_k * 0, mask=m_rest)
    tl.store(p_need + o_k, tl.full([BLOCK_K], INFINITY_32, tl.float32), mask=m_rest)
    return count


@triton.jit
def _race_kernel(
    values_ptr, ids_ptr, race_ptr, context_ptr, key_ptr, candidates_ptr, needs_ptr, counts_ptr,
    stride_vb, stride_ib, stride_rb, stride_cb, max_strength, K, M,
    W: tl.constexpr, SCALE: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    i_b = tl.program_id(0).to(tl.int64)
    lo, hi = key_words(key_ptr + i_b)
    count = race_rungs(
        ids_ptr + i_b * stride_ib, values_ptr + i_b * stride_vb, race_ptr + i_b * stride_rb,
        context_ptr + i_b * stride_cb, lo, hi, candidates_ptr + i_b * M, needs_ptr + i_b * M, max_strength, K, M,
        W, SCALE, BLOCK_K,
    )  # fmt: skip
    tl.store(counts_ptr + i_b, count.to(tl.int64))


def check_record(values, ids, race, kind: torch.dtype = torch.float32) -> tuple[int, int]:
    """Raise unless all are [B, K] with contiguous rows and K <= 128; return B and K. kind: of race."""
    check_tensor("values", values, (torch.float32,), (None, None))
    batch, k = values.shape
    check(1 <= k <= MAX_K, f"values must have 1 to {MAX_K} columns", k, "shorten the record")
    check_tensor("ids", ids, (torch.int64,), (batch, k), values)
    check_tensor("race", race, (kind,), (batch, k), values)
    for name, tensor in (("values", values), ("ids", ids), ("race", race)):
        rows = k == 1 or tensor.stride(1) == 1
        check(rows, f"{name} must have contiguous rows", f"stride {tensor.stride()}", "call .contiguous()")
    return batch, k


def _check(values, ids, race, scores, context, key, scheme: int, threshold: int) -> None:
    batch, _ = check_record(values, ids, race)
    check_tensor("scores", scores, FLOATS, (batch, None), values)
    check_prf(key, context, batch, values)
    width = context.shape[1]
    check(0 <= scheme <= RACE_SCALE, f"scheme must be in [0, {RACE_SCALE}]", scheme, "use Watermark.native")
    check(scheme != SELFHASH or width >= 1, "context must hold at least 1 token for selfhash", width, "pass the window")
    check(0 <= threshold <= 1 << LIST_BITS, f"threshold must be in [0, 2**{LIST_BITS}]", threshold, "use gamma * 2**24")


def enumerate_candidates(
    values: torch.Tensor,
    ids: torch.Tensor,
    race: torch.Tensor,
    scores: torch.Tensor,
    context: torch.Tensor,
    key: torch.Tensor,
    scheme: int,
    threshold: int,
    full: float,
    max_strength: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Candidates [B, M], needs [B, M], counts [B]; arguments as in `enumerate_candidates_ref`, K <= 128.

    Candidates, counts and the needs of reached rungs equal the reference's bit for bit, race values within the row
    `margin/race` apart. Deterministic. Raises TypeError or ValueError naming the argument, before any launch.
    """
    _check(values, ids, race, scores, context, key, scheme, threshold)
    batch, k = values.shape
    width = rungs(k, scheme, full, max_strength)
    candidates = ids.new_empty((batch, width))
    needs, counts = values.new_empty((batch, width)), ids.new_empty((batch,))
    out = {"candidates_ptr": candidates, "needs_ptr": needs, "counts_ptr": counts}
    strides = {"stride_vb": values.stride(0), "stride_ib": ids.stride(0)}
    record = {"values_ptr": values, "ids_ptr": ids}
    shape = {"K": k, "W": context.shape[1], "BLOCK_K": triton.next_power_of_2(k)}
    secret = {"key_ptr": key, "context_ptr": context, "stride_cb": context.stride(0)}
    if scheme in (RACE_TOP_K, RACE_SCALE):
        arguments = {**record, **out, **strides, **secret, **shape, "race_ptr": race, "stride_rb": race.stride(0),
                     "max_strength": max_strength, "M": width, "SCALE": scheme == RACE_SCALE}  # fmt: skip
        launch(_race_kernel, (batch,), arguments, num_warps=4, enable_fp_fusion=False)
        return candidates, needs, counts
    strengths = {"full": full, "max_strength": max_strength}
    green = {"token_ptr": ids.new_empty((batch,)), "logit_ptr": values.new_empty((batch,)),
             "wanted_ptr": ids.new_empty((batch,), dtype=torch.bool)}  # fmt: skip
    arguments = {**record, **green, **strides, **secret, **shape, **strengths,
                 "threshold": threshold, "SELFHASH_LIST": scheme == SELFHASH}  # fmt: skip
    launch(_green_kernel, (batch,), arguments, num_warps=4, enable_fp_fusion=False)
    scanned = green_argmax(scores, context, key, threshold, scheme == SELFHASH, green["wanted_ptr"])
    arguments = {**record, **green, **out, **strides, **strengths, "scanned_ptr": scanned[0],
                 "scanned_logit_ptr": scanned[1]}  # fmt: skip
    launch(_reweight_kernel, (batch,), arguments, num_warps=1, enable_fp_fusion=False)
    return candidates, needs, counts
