"""Exact, stable top-K of each row of logits with its logsumexp, in two kernels.

    u(x) = bits(x) with the sign bit flipped (x >= 0) or all bits flipped (x < 0)      orders uint32 as floats
    x before y  iff  u(x) > u(y), or u(x) == u(y) and id(x) < id(y)                    (topk_softmax_ref)

1. Each program reads BLOCK_V logits once, keeps max and sum of exp, finds the K-th greatest key by bisection over its
   bits (counts of keys >= a threshold) and writes the K winners where a running sum puts them.
2. One program a row does the same with the winners of all blocks, then orders the last K by rank: the number of winners
   before each. No sort network, no atomics: the result is one exact list on every device.

Every value is cast to float32 right after its load, which is exact. Bisection needs only as many bits as the dtype has.
"""

import torch
import triton
import triton.language as tl

from caw.triton_kernels.block_sizes import topk_blocks
from caw.triton_kernels.launching import FLOATS, cdiv, check, check_tensor, launch

MAX_K = 128
MAX_VOCABULARY = 262_144
# sign, exponent and fraction bits of a float32 that came from this dtype; half-precision subnormals stay within
KEY_BITS = {torch.bfloat16: 16, torch.float16: 19, torch.float32: 32}


@triton.jit
def ordered_key(x):
    """float32 -> uint32 in the order of the floats; -0.0 equals 0.0, NaN above +inf, NaN with a sign below -inf."""
    u = x.to(tl.uint32, bitcast=True)
    u = tl.where(u == 0x80000000, 0, u)  # on bits: a compiler may not care about the sign of a float zero
    return tl.where((u >> 31) != 0, u ^ 0xFFFFFFFF, u | 0x80000000)


@triton.jit
def _winner_slots(key, K: tl.constexpr, BITS: tl.constexpr):
    """(slot, whether among the K greatest) of each element by BITS leading bits; equal keys go by position."""
    lead = key >> (32 - BITS)
    threshold = tl.full((), 0, tl.uint32)
    one = tl.full((), 1, tl.uint32)
    for j in tl.static_range(BITS):
        trial = threshold | (one << (BITS - 1 - j))
        threshold = tl.where(tl.sum((lead >= trial).to(tl.int32), 0) >= K, trial, threshold)
    above = lead > threshold
    equal = lead == threshold
    count = tl.sum(above.to(tl.int32), 0)
    slot = tl.where(
        above, tl.cumsum(above.to(tl.int32), 0) - 1, count + tl.cumsum(equal.to(tl.int32), 0) - 1
    )  # fmt: skip
    return slot, above | (equal & (slot < K))


@triton.jit(do_not_specialize=["row_count"])
def _part_kernel(
    logits_ptr, rows_ptr, keys_ptr, ids_ptr, max_ptr, sum_ptr, stride_lr, stride_lv, row_count, vocab_size,
    K: tl.constexpr, BITS: tl.constexpr, HAS_ROWS: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The K greatest of one block of one row (id -1 where it has fewer), its maximum and sum of exponentials."""
    i_r = tl.program_id(0).to(tl.int64)
    i_b = tl.program_id(1)
    i_part = i_r * tl.num_programs(1) + i_b
    row = i_r
    limit = vocab_size
    if HAS_ROWS:
        row = tl.load(rows_ptr + i_r)
        # a row number out of range reads nothing and gives an empty row: refusing it would have to wait for the device
        limit = tl.where((row >= 0) & (row < row_count), vocab_size, 0)
    o_v = i_b * BLOCK_V + tl.arange(0, BLOCK_V)
    m_v = o_v < limit
    p_x = logits_ptr + row * stride_lr + o_v.to(tl.int64) * stride_lv
    b_x = tl.load(p_x, mask=m_v, other=float("-inf")).to(tl.float32)  # [BLOCK_V]
    top = tl.max(b_x, 0)
    shift = tl.where(tl.abs(top) == float("inf"), 0.0, top)  # inf - inf is NaN
    total = tl.sum(tl.where(m_v, tl.exp(b_x - shift), 0.0), 0)
    tl.store(max_ptr + i_part, top)
    tl.store(sum_ptr + i_part, total)
    key = tl.where(m_v, ordered_key(b_x), 0)
    slot, keep = _winner_slots(key, K, BITS)
    tl.store(keys_ptr + i_part * K + slot, key, mask=keep)
    tl.store(ids_ptr + i_part * K + slot, tl.where(m_v, o_v, -1), mask=keep)


@triton.jit
def _merge_kernel(
    logits_ptr, rows_ptr, keys_ptr, ids_ptr, max_ptr, sum_ptr, list_ptr,
    out_values_ptr, out_ids_ptr, out_probs_ptr, out_lse_ptr, stride_lr, stride_lv, parts,
    K: tl.constexpr, BITS: tl.constexpr, HAS_ROWS: tl.constexpr,
    BLOCK_PARTS: tl.constexpr, BLOCK_CANDIDATES: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One row: merge the blocks' winners, order them, and read the logits back so that every bit is the input's."""
    i_r = tl.program_id(0).to(tl.int64)
    row = i_r
    if HAS_ROWS:
        row = tl.load(rows_ptr + i_r)
    o_p = tl.arange(0, BLOCK_PARTS)
    b_max = tl.load(max_ptr + i_r * parts + o_p, mask=o_p < parts, other=float("-inf"))  # [BLOCK_PARTS]
    b_sum = tl.load(sum_ptr + i_r * parts + o_p, mask=o_p < parts, other=0.0)  # [BLOCK_PARTS]
    top = tl.max(b_max, 0)
    shift = tl.where(tl.abs(top) == float("inf"), 0.0, top)
    # a part's sum is relative to its own maximum, or to 0 where that is infinite
    part_shift = tl.where(tl.abs(b_max) == float("inf"), 0.0, b_max)
    scaled = tl.where(b_sum == 0, 0.0, b_sum * tl.exp(part_shift - shift))
    lse = shift + tl.log(tl.sum(scaled, 0))
    tl.store(out_lse_ptr + i_r, lse)

    o_c = tl.arange(0, BLOCK_CANDIDATES)
    m_c = o_c < parts * K
    b_key = tl.load(keys_ptr + i_r * parts * K + o_c, mask=m_c, other=0)  # [BLOCK_CANDIDATES]
    b_id = tl.load(ids_ptr + i_r * parts * K + o_c, mask=m_c, other=-1)  # [BLOCK_CANDIDATES]
    slot, keep = _winner_slots(b_key, K, BITS)
    # one number that orders winners: key, then smaller id, then (only padding has equal ids) its place in the list
    order = (b_key.to(tl.int64) << 31) + (0x7FFFFFFF - b_id).to(tl.int64)
    tl.store(list_ptr + i_r * K + slot, tl.where(b_id >= 0, order, -1 - slot), mask=keep)
    tl.debug_barrier()  # other threads of this program read what was just stored

    o_k = tl.arange(0, BLOCK_K)
    m_k = o_k < K
    b_order = tl.load(list_ptr + i_r * K + o_k, mask=m_k, other=-(1 << 62))  # [BLOCK_K]
    rank = tl.sum((b_order[None, :] > b_order[:, None]).to(tl.int32), 1)
    real = b_order >= 0
    b_id = tl.where(real, 0x7FFFFFFF - (b_order & 0x7FFFFFFF), -1)
    p_x = logits_ptr + row * stride_lr + b_id * stride_lv
    b_x = tl.load(p_x, mask=m_k & real, other=float("-inf")).to(tl.float32)  # [BLOCK_K]
    b_prob = tl.where(b_x == float("-inf"), 0.0, tl.exp(b_x - lse))
    tl.store(out_values_ptr + i_r * K + rank, b_x, mask=m_k)
    tl.store(out_ids_ptr + i_r * K + rank, b_id, mask=m_k)
    tl.store(out_probs_ptr + i_r * K + rank, b_prob, mask=m_k)


def topk_softmax(
    logits: torch.Tensor, k: int, rows: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The K largest logits of each row; arguments and result as in `topk_softmax_ref`, values and ids bit for bit.

    logits [R, V] of any strides, V in [1, 262144], k in [1, 128]; rows int64 [R'] in device memory, a number outside
    [0, R) gives an empty row (ids -1, logsumexp -inf) instead of the reference's error. Ties go to the smaller id.
    Deterministic. Reads each logit once, then 8 * K * cdiv(V, 4096) bytes a row.

    Raises:
        TypeError, ValueError: naming the argument, before any launch.
    """
    check_tensor("logits", logits, FLOATS, (None, None))
    count, vocab_size = logits.shape
    check(1 <= k <= MAX_K, f"k must be in [1, {MAX_K}]", k, "ask for fewer")
    check(1 <= vocab_size <= MAX_VOCABULARY, f"logits must have 1 to {MAX_VOCABULARY} columns", vocab_size,
          "use the reference")  # fmt: skip
    if rows is not None:
        check_tensor("rows", rows, (torch.int64,), (None,), logits)
        check(rows.is_contiguous(), "rows must be contiguous", f"stride {rows.stride()}", "call .contiguous()")
    selected = count if rows is None else rows.shape[0]
    blocks = topk_blocks(vocab_size)
    parts = cdiv(vocab_size, blocks.block_v)
    keys = logits.new_empty((selected, parts, k), dtype=torch.int32)
    ids = torch.empty_like(keys)
    greatest = logits.new_empty((selected, parts), dtype=torch.float32)
    total = torch.empty_like(greatest)
    order = logits.new_empty((selected, k), dtype=torch.int64)
    values = logits.new_empty((selected, k), dtype=torch.float32)
    out_ids, probs = torch.empty_like(order), torch.empty_like(values)
    logsumexp = logits.new_empty((selected,), dtype=torch.float32)
    shared = {
        "logits_ptr": logits, "rows_ptr": order if rows is None else rows, "keys_ptr": keys.view(torch.uint32),
        "ids_ptr": ids, "max_ptr": greatest, "sum_ptr": total,
        "stride_lr": logits.stride(0), "stride_lv": logits.stride(1),
        "K": k, "BITS": KEY_BITS[logits.dtype], "HAS_ROWS": rows is not None,
       
    }  # fmt: skip
    launch(
        _part_kernel,
        (selected, parts),
        {**shared, "row_count": count, "vocab_size": vocab_size, "BLOCK_V": blocks.block_v},
        num_warps=blocks.part_warps,
        maxnreg=128,  # two programs of eight warps on a multiprocessor; left to itself the compiler takes 156 for one
    )
    launch(
        _merge_kernel,
        (selected,),
        {
            **shared, "list_ptr": order, "parts": parts,
            "out_values_ptr": values, "out_ids_ptr": out_ids, "out_probs_ptr": probs, "out_lse_ptr": logsumexp,
            "BLOCK_PARTS": triton.next_power_of_2(parts), "BLOCK_CANDIDATES": triton.next_power_of_2(parts * k),
            "BLOCK_K": triton.next_power_of_2(k),
        },
        num_warps=blocks.merge_warps, maxnreg=168,  # left to itself the compiler spills at 128 for 10.0
    )  # fmt: skip
    return values, out_ids, probs, logsumexp
