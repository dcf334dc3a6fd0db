"""What the sampler keeps of rows of logits: temperature, top-k, top-p, min-p, in transformers' order (warp_logits_ref).

A list of logits and the mass of what lies below them tell where the row is cut, if the border is among them: first the
record of the row's greatest, and where that does not hold it, all that may. The k-th largest logit, and the one at
which top-p ends, are least by bisection over the bits of ordered keys, two at a reading of the list: counts, and sums
of probabilities, of what lies at or below a trial.

1. Each program divides a block by the temperature, adds up its powers and counts what may be at the border.
2. One warp a row finds the border in the record, or marks the row as open; 4. a program finds that of an open row
3. among what each program has listed of a block. 5. Each program cuts a block.
Which rows ask for what is read from device tensors: nothing goes back to the host, so that a CUDA graph can hold it.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from caw.defaults import RECORD_SIZE
from caw.triton_kernels.launching import cdiv, check, check_tensor, launch, next_power_of_2
from caw.triton_kernels.topk_softmax import MAX_VOCABULARY, ordered_key, topk_softmax

BLOCK_V, BLOCK_LIST = 1024, 4096
LOW = tl.constexpr(float("-inf"))


@triton.jit
def _keys(p_x, start, size, room, BLOCK: tl.constexpr):
    """Logits at `start` on, -inf beyond the list, and their keys in the order of the floats: [BLOCK]. The list has room
    for the whole row, which alone masks the loads, so that they are wide."""
    o_v = start + tl.arange(0, BLOCK)
    b_x = tl.where(o_v < size, tl.load(p_x + o_v, mask=o_v < room, other=LOW), LOW)  # [BLOCK]
    return b_x, ordered_key(b_x)


@triton.jit
def _powers(b_x, key, least, top):
    """exp(x - top) of what is left, float32."""
    return tl.where(key >= least, tl.exp(b_x - top), 0.0)


@triton.jit
def _mass(p_x, least, top, size, room, BLOCK: tl.constexpr):
    """The sum of the powers of what is left in the list, float64."""
    total = tl.full((), 0.0, tl.float64)
    for start in range(0, size, BLOCK):
        b_x, key = _keys(p_x, start, size, room, BLOCK)
        total += tl.sum(_powers(b_x, key, least, top).to(tl.float64), 0)
    return total


@triton.jit
def _top_k_key(p_x, top_k, size, room, BLOCK: tl.constexpr):
    """The key of the k-th largest logit."""
    least = tl.full((), 0, tl.uint32)
    unit = tl.full((), 1 << 30, tl.uint32)
    for _ in range(16):  # two bits at a reading: how many keys reach each of three trials
        n1 = tl.full((), 0, tl.int32)
        n2 = tl.full((), 0, tl.int32)
        n3 = tl.full((), 0, tl.int32)
        for start in range(0, size, BLOCK):
            _x, key = _keys(p_x, start, size, room, BLOCK)
            n1 += tl.sum((key >= least + unit).to(tl.int32), 0)
            n2 += tl.sum((key >= least + 2 * unit).to(tl.int32), 0)
            n3 += tl.sum((key >= least + 3 * unit).to(tl.int32), 0)
        steps = (n1 >= top_k).to(tl.uint32) + (n2 >= top_k).to(tl.uint32) + (n3 >= top_k).to(tl.uint32)
        least += steps * unit
        unit = unit >> 2
    return least


@triton.jit
def _top_p_key(p_x, p_id, p_p, one_minus_top_p, least, rest, top, highest, size, room, BLOCK: tl.constexpr):
    """The key at which the nucleus ends, how many tokens of that key are outside, and the first id that is not."""
    whole = (_mass(p_x, least, top, size, room, BLOCK) + rest).to(tl.float32)
    for start in range(0, size, BLOCK):  # probabilities, once for all readings
        b_x, key = _keys(p_x, start, size, room, BLOCK)
        o_v = start + tl.arange(0, BLOCK)
        tl.store(p_p + o_v, _powers(b_x, key, least, top) / whole, mask=o_v < room)
    tl.debug_barrier()  # the program reads what its other threads stored
    rest = rest / whole.to(tl.float64)
    # the greatest key up to which the sum is at most 1 - top_p, and then what is equal to the one above it
    gone = tl.full((), 0, tl.uint32)
    below = rest
    unit = tl.full((), 1 << 30, tl.uint32)
    for _ in range(16):
        s1 = rest
        s2 = rest
        s3 = rest
        for start in range(0, size, BLOCK):
            _x, key = _keys(p_x, start, size, room, BLOCK)
            o_v = start + tl.arange(0, BLOCK)
            b_p = tl.load(p_p + o_v, mask=o_v < room, other=0.0).to(tl.float64)  # [BLOCK]
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
    border = gone + 1  # a token's, unless more than 1 - top_p is unlisted: then the least key there is
    each = tl.full((), 0.0, tl.float64)
    equal = tl.full((), 0, tl.int32)
    for start in range(0, size, BLOCK):
        _x, key = _keys(p_x, start, size, room, BLOCK)
        o_v = start + tl.arange(0, BLOCK)
        same = key == border
        each = tl.maximum(each, tl.max(tl.load(p_p + o_v, mask=same, other=0.0), 0).to(tl.float64))
        equal += tl.sum(same.to(tl.int32), 0)
    # the j-th of them goes while the sum including it is at most 1 - top_p; bisection over ids, as the sum rises with j
    first = tl.full((), 0, tl.int32)
    fewer = tl.full((), 0, tl.int32)
    step = (equal > 1).to(tl.int32) << 17  # ids are below MAX_VOCABULARY
    while step > 0:
        smaller = tl.full((), 0, tl.int32)
        for start in range(0, size, BLOCK):
            _x, key = _keys(p_x, start, size, room, BLOCK)
            o_v = start + tl.arange(0, BLOCK)
            b_id = tl.load(p_id + o_v, mask=o_v < room, other=0)  # [BLOCK]
            smaller += tl.sum(((key == border) & (b_id < first + step)).to(tl.int32), 0)
        goes = (smaller < equal) & ((below + smaller.to(tl.float64) * each).to(tl.float32) <= one_minus_top_p)
        first = tl.where(goes, first + step, first)
        fewer = tl.where(goes, smaller, fewer)
        step = step // 2
    return border, fewer, first


@triton.jit
def _min_p_key(p_x, min_p, least, fewer, rest, top, highest, size, room, BLOCK: tl.constexpr):
    """The key of the least likely token that is at least min_p times as likely as the likeliest."""
    total = _mass(p_x, least, top, size, room, BLOCK) + rest
    border_power = tl.full((), 0.0, tl.float32)
    for start in range(0, size, BLOCK):
        b_x, key = _keys(p_x, start, size, room, BLOCK)
        border_power = tl.maximum(border_power, tl.max(tl.where(key == least, tl.exp(b_x - top), 0.0), 0))
    whole = (total - fewer.to(tl.float64) * border_power.to(tl.float64)).to(tl.float32)
    limit = min_p * tl.div_rn(tl.full((), 1.0, tl.float32), whole)
    smallest = highest
    for start in range(0, size, BLOCK):
        b_x, key = _keys(p_x, start, size, room, BLOCK)
        likely = (key >= least) & ((_powers(b_x, key, least, top) / whole) >= limit)
        smallest = tl.minimum(smallest, tl.min(tl.where(likely, key, highest), 0))
    return smallest


@triton.jit
def _divide_kernel(
    logits_ptr, values_ptr, wanted_ptr, temperature_ptr, top_k_ptr, one_minus_top_p_ptr, out_ptr, sum_ptr, count_ptr,
    floor_ptr, stride_lb, stride_lv, stride_r, vocab_size, K: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One block of one row over its temperature, the sum of its powers (NaN where one is), and the number above the
    floor: what lies at or below it has, all together, at most half of what top-p may cut."""
    i_b = tl.program_id(0).to(tl.int64)
    i_part = i_b * tl.num_programs(1) + tl.program_id(1)
    temperature = tl.where(tl.load(wanted_ptr + i_b).to(tl.int32) != 0, tl.load(temperature_ptr + i_b), 1.0)
    top_k, one_minus_top_p = tl.load(top_k_ptr + i_b), tl.load(one_minus_top_p_ptr + i_b)
    o_k = tl.arange(0, BLOCK_K)
    b_top = tl.load(values_ptr + i_b * stride_r + o_k, mask=o_k < K, other=LOW)  # [BLOCK_K]
    b_top = tl.div_rn(b_top, tl.full([BLOCK_K], 0.0, tl.float32) + temperature)
    top = tl.max(b_top, 0)
    share = one_minus_top_p * tl.sum(tl.exp(b_top - top), 0) / (2.0 * vocab_size)
    limited = (top_k >= 1) & (top_k < vocab_size)
    floor = tl.where((one_minus_top_p > 0) & (limited == 0), top + tl.log(share), LOW)
    tl.store(floor_ptr + i_b, floor)  # the same by every program
    o_v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_v = o_v < vocab_size
    b_x = tl.load(logits_ptr + i_b * stride_lb + o_v.to(tl.int64) * stride_lv, mask=m_v, other=LOW)  # [BLOCK]
    b_x = tl.where(temperature == 1.0, b_x, tl.div_rn(b_x, tl.full([BLOCK], 0.0, tl.float32) + temperature))
    tl.store(out_ptr + i_b * vocab_size + o_v, b_x, mask=m_v)
    tl.store(sum_ptr + i_part, tl.sum(tl.where(b_x == LOW, 0.0, tl.exp(b_x - top)).to(tl.float64), 0))
    tl.store(count_ptr + i_part, tl.sum((b_x > floor).to(tl.int32), 0))


@triton.jit
def _list_kernel(
    out_ptr, open_ptr, count_ptr, floor_ptr, list_ptr, id_ptr, vocab_size,
    BLOCK: tl.constexpr, BLOCK_PARTS: tl.constexpr,
):  # fmt: skip
    """What one block of an open row has above the floor, in the order of ids."""
    i_b = tl.program_id(0).to(tl.int64)
    if tl.load(open_ptr + i_b) != 0:
        o_p = tl.arange(0, BLOCK_PARTS)
        b_count = tl.load(count_ptr + i_b * tl.num_programs(1) + o_p, mask=o_p < tl.program_id(1), other=0)
        o_v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        b_x = tl.load(out_ptr + i_b * vocab_size + o_v, mask=o_v < vocab_size, other=LOW)  # [BLOCK]
        above = b_x > tl.load(floor_ptr + i_b)
        place = i_b * vocab_size + tl.sum(b_count, 0) + tl.cumsum(above.to(tl.int32), 0) - 1
        tl.store(list_ptr + place, b_x, mask=above)
        tl.store(id_ptr + place, o_v, mask=above)


@triton.jit
def _border_kernel(
    values_ptr, record_ptr, wanted_ptr, temperature_ptr, top_k_ptr, one_minus_top_p_ptr, min_p_ptr, sum_ptr, count_ptr,
    list_ptr, id_ptr, prob_ptr, open_ptr, border_ptr, first_ptr, stride_r, vocab_size, parts,
    K: tl.constexpr, LISTED: tl.constexpr, BLOCK: tl.constexpr, BLOCK_PARTS: tl.constexpr,
):  # fmt: skip
    """The border's key in one row, 0 = nothing goes, and the first id that stays of those equal to it: by the record,
    or by the list where that was not enough."""
    i_b = tl.program_id(0).to(tl.int64)
    p_x, p_id, p_p = list_ptr + i_b * vocab_size, id_ptr + i_b * vocab_size, prob_ptr + i_b * vocab_size
    temperature, top_k = tl.load(temperature_ptr + i_b), tl.load(top_k_ptr + i_b)
    limit, min_p = tl.load(one_minus_top_p_ptr + i_b), tl.load(min_p_ptr + i_b)
    top = tl.div_rn(tl.load(values_ptr + i_b * stride_r), temperature)
    o_p = tl.arange(0, BLOCK_PARTS)
    total = tl.sum(tl.load(sum_ptr + i_b * parts + o_p, mask=o_p < parts, other=0.0), 0)
    limited = (top_k >= 1) & (top_k < vocab_size)
    wanted = tl.load(wanted_ptr + i_b).to(tl.int32) != 0
    sound = wanted & (total == total) & (tl.abs(top) < float("inf"))
    todo = sound & (limited | (limit >= 0) | (min_p > 0))
    if LISTED:
        size = tl.sum(tl.load(count_ptr + i_b * parts + o_p, mask=o_p < parts, other=0), 0)
        todo = todo & (tl.load(open_ptr + i_b) != 0)
    else:
        size = K
        o_k = tl.arange(0, BLOCK)
        b_x = tl.load(values_ptr + i_b * stride_r + o_k, mask=o_k < size, other=LOW)  # [BLOCK]
        b_x = tl.div_rn(b_x, tl.full([BLOCK], 0.0, tl.float32) + temperature)
        tl.store(p_x + o_k, b_x, mask=o_k < size)
        b_id = tl.load(record_ptr + i_b * stride_r + o_k, mask=o_k < size, other=0)  # [BLOCK]
        tl.store(p_id + o_k, b_id.to(tl.int32), mask=o_k < size)
        tl.debug_barrier()  # the program reads what its other threads stored
        tl.store(open_ptr + i_b, 0)
        tl.store(border_ptr + i_b, 0)
        tl.store(first_ptr + i_b, 0)
    if todo:
        highest = ordered_key(top)
        lowest = ordered_key(tl.full((), LOW, tl.float32)) + tl.full((), 1, tl.uint32)  # the key above that of -inf
        # what is left: keys from `least` on, of those equal to it all but `fewer` of smallest id, and `rest` unlisted
        least = lowest
        fewer = tl.full((), 0, tl.int32)
        first = tl.full((), 0, tl.int32)
        rest = tl.full((), 0.0, tl.float64)
        edge = highest  # what the first of three says
        if limited:
            least = tl.maximum(least, _top_k_key(p_x, top_k, size, vocab_size, BLOCK))
            edge = least
        else:
            rest = tl.maximum(total - _mass(p_x, least, top, size, vocab_size, BLOCK), 0.0)
        if limit >= 0:
            least, fewer, first = _top_p_key(p_x, p_id, p_p, limit, least, rest, top, highest, size, vocab_size, BLOCK)
            rest = tl.full((), 0.0, tl.float64)
            edge = tl.minimum(edge, least)
        if min_p > 0:
            smallest = _min_p_key(p_x, min_p, least, fewer, rest, top, highest, size, vocab_size, BLOCK)
            first = tl.where(smallest > least, 0, first)
            least = smallest
            edge = tl.minimum(edge, least)
        tl.store(border_ptr + i_b, least)
        tl.store(first_ptr + i_b, first)
        if not LISTED:  # what is unlisted may be as great as the last of the record
            last = ordered_key(tl.div_rn(tl.load(values_ptr + i_b * stride_r + K - 1), temperature))
            tl.store(open_ptr + i_b, ((edge <= last) & (last >= lowest) & (vocab_size > K)).to(tl.int32))


@triton.jit
def _cut_kernel(out_ptr, border_ptr, first_ptr, vocab_size, BLOCK: tl.constexpr):
    """One block of one row."""
    i_b = tl.program_id(0).to(tl.int64)
    border, first = tl.load(border_ptr + i_b), tl.load(first_ptr + i_b)
    o_v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_v = o_v < vocab_size
    key = ordered_key(tl.load(out_ptr + i_b * vocab_size + o_v, mask=m_v, other=LOW))  # [BLOCK]
    goes = (key < border) | ((key == border) & (o_v < first))
    tl.store(out_ptr + i_b * vocab_size + o_v, LOW, mask=m_v & goes)


def warp_logits(logits: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
    """Warped logits float32 [B, V]; arguments as in `warp_logits_ref`, logits of any strides.

    Exponentials and sums may round elsewhere than the reference's: row `margin/nucleus`. Raises TypeError or ValueError
    naming the argument, before any launch.
    """
    check_tensor("logits", logits, (torch.float32,), (None, None))
    return warp_recorded(logits, *topk_softmax(logits, RECORD_SIZE)[:2], *rows)


def warp_recorded(
    logits: torch.Tensor,
    values: torch.Tensor,
    ids: torch.Tensor,
    wanted: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    one_minus_top_ps: torch.Tensor,
    min_ps: torch.Tensor,
) -> torch.Tensor:
    """`warp_logits` of rows whose greatest logits are known: values float32 and ids int64 [B, K] of `topk_softmax`."""
    check_tensor("logits", logits, (torch.float32,), (None, None))
    batch, vocab_size = logits.shape
    check(1 <= vocab_size <= MAX_VOCABULARY, f"logits must have 1 to {MAX_VOCABULARY} columns", vocab_size,
          "use the reference")  # fmt: skip
    check_tensor("wanted", wanted, (torch.bool,), (batch,), logits)
    check_tensor("top_ks", top_ks, (torch.int64,), (batch,), logits)
    numbers = {"temperatures": temperatures, "one_minus_top_ps": one_minus_top_ps, "min_ps": min_ps}
    for name, tensor in numbers.items():
        check_tensor(name, tensor, (torch.float32,), (batch,), logits)
    check_tensor("values", values, (torch.float32,), (batch, None), logits)
    check_tensor("ids", ids, (torch.int64,), tuple(values.shape), logits)
    for name, tensor in {"wanted": wanted, "top_ks": top_ks, "values": values, "ids": ids, **numbers}.items():
        check(tensor.is_contiguous(), f"{name} must be contiguous", f"stride {tensor.stride()}", "call .contiguous()")
    block = min(BLOCK_V, next_power_of_2(vocab_size))
    size, parts = min(values.shape[1], vocab_size), cdiv(vocab_size, block)
    out, listed, probs = (logits.new_empty((batch, vocab_size)) for _ in range(3))
    left, borders, firsts = logits.new_empty((3, batch), dtype=torch.int32)
    given = {
        "logits_ptr": logits, "values_ptr": values, "record_ptr": ids, "wanted_ptr": wanted, "out_ptr": out,
        "temperature_ptr": temperatures, "top_k_ptr": top_ks, "one_minus_top_p_ptr": one_minus_top_ps,
        "min_p_ptr": min_ps, "floor_ptr": torch.empty_like(min_ps), "list_ptr": listed, "prob_ptr": probs,
        "id_ptr": torch.empty_like(listed, dtype=torch.int32),
        "sum_ptr": logits.new_empty((batch, parts), dtype=torch.float64),
        "count_ptr": logits.new_empty((batch, parts), dtype=torch.int32),
        "open_ptr": left, "border_ptr": borders.view(torch.uint32), "first_ptr": firsts,
        "stride_lb": logits.stride(0), "stride_lv": logits.stride(1), "stride_r": values.shape[1],
        "vocab_size": vocab_size, "parts": parts, "K": size, "BLOCK": block, "BLOCK_K": next_power_of_2(size),
        "BLOCK_PARTS": next_power_of_2(parts), "LISTED": True,
    }  # fmt: skip
    recorded: dict[str, Any] = {"LISTED": False, "BLOCK": next_power_of_2(size)}
    whole: dict[str, Any] = {"BLOCK": min(BLOCK_LIST, next_power_of_2(vocab_size))}
    row, blocks = (batch,), (batch, parts)
    for kernel, grid, warps, own in (
        (_divide_kernel, blocks, 4, {}), (_border_kernel, row, 1, recorded), (_list_kernel, blocks, 4, {}),
        (_border_kernel, row, 8, whole), (_cut_kernel, blocks, 4, {}),
    ):  # fmt: skip
        arguments = {name: (given | own)[name] for name in kernel.arg_names}
        launch(kernel, grid, arguments, num_warps=warps, enable_fp_fusion=False)
    return out
