"""All that a captured step does before it looks ahead, in two launches for green lists and one for races.

    context = the last W tokens of the text;  ladder = enumerate_candidates(record, context, key)    (ladder_step_ref)
    one rung where the context stood there before, or where a candidate would end the text
    carried = the token that waits, else the first candidates

Green lists: every program of a row walks its record; if a green token beyond that is wanted, each scans its part of the
vocabulary. The second launch takes the best part and writes the ladder. Fused multiply-add is off, because
fl32(l + fl32(strength * delta)) must round twice.
"""

import torch
import triton
import triton.language as tl

from caw.ladder import rungs
from caw.op_indices import RACE_SCALE, RACE_TOP_K, SELFHASH
from caw.triton_kernels.enumerate_candidates import MAX_K, first_green, race_rungs, two_rungs
from caw.triton_kernels.green_argmax import BLOCK_QUADS, best_of_quads, best_token
from caw.triton_kernels.launching import FLOATS, cdiv, check, check_tensor, launch, uses_pdl
from caw.triton_kernels.pdl import pdl_sync
from caw.triton_kernels.prf import LIST_BITS, MAX_CONTEXT, key_words

MAX_ENDS = 64
BLOCK_S = 512  # places of the text that are compared with the context at a time


@triton.jit
def _write_rest(
    candidates_ptr, counts_ptr, carried_ptr, padded_ptr, tally_ptr, pending_ptr, ends_ptr, i_b, count, stride_pb, M, E,
    slots, W: tl.constexpr, DEDUPLICATE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_S: tl.constexpr,
):  # fmt: skip
    """One row's count and what is carried; the rungs stored before may turn out to be one too many."""
    tl.debug_barrier()  # other threads of this program read what was just stored
    o_m = tl.arange(0, BLOCK_M)
    m_m = o_m < M
    p_candidate = candidates_ptr + i_b * M
    original = tl.load(p_candidate)
    b_candidate = tl.load(p_candidate + o_m, mask=m_m, other=-2)  # [BLOCK_M]
    alone = count < 0
    if BLOCK_E > 0:
        o_e = tl.arange(0, BLOCK_E)
        b_end = tl.load(ends_ptr + i_b * E + o_e, mask=o_e < E, other=-3)  # [BLOCK_E]
        among = tl.sum((b_candidate[:, None] == b_end[None, :]).to(tl.int32), 1)
        alone = alone | (tl.sum(among, 0) > 0)
    if DEDUPLICATE:
        p_text = padded_ptr + i_b * stride_pb
        tally = tl.load(tally_ptr + i_b).to(tl.int32)
        seen = tl.full((), 0, tl.int32)
        for start in range(0, tally, BLOCK_S):
            o_s = start + tl.arange(0, BLOCK_S)
            same = o_s < tally
            for j in tl.static_range(W):
                b_token = tl.load(p_text + o_s + j, mask=o_s < tally, other=-2)  # [BLOCK_S]
                same = same & (b_token == tl.load(p_text + tally + j))
            seen += tl.sum(same.to(tl.int32), 0)
        alone = alone | (seen > 0)
    pending = tl.load(pending_ptr + i_b)
    b_candidate = tl.where(alone, original, b_candidate)
    tl.debug_barrier()  # what is written now, others of these threads still had to read
    tl.store(p_candidate + o_m, b_candidate, mask=m_m)
    tl.store(counts_ptr + i_b, tl.where(alone, 1, count).to(tl.int64))
    tl.store(carried_ptr + i_b * slots + o_m, tl.where(pending >= 0, pending, b_candidate), mask=o_m < slots)


@triton.jit
def _walk_kernel(
    values_ptr, ids_ptr, scores_ptr, padded_ptr, tally_ptr, key_ptr, token_ptr, logit_ptr, wanted_ptr, best_ptr,
    stride_vb, stride_ib, stride_sb, stride_sv, stride_pb, threshold, full, max_strength, K, vocab_size,
    W: tl.constexpr, SELFHASH_LIST: tl.constexpr, USE_PDL: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """The first green token of a row's record, and where that is wanted the best one of this program's tokens."""
    pdl_sync(USE_PDL)
    i_b = tl.program_id(0).to(tl.int64)
    i_q = tl.program_id(1)
    p_context = padded_ptr + i_b * stride_pb + tl.load(tally_ptr + i_b)
    low, high = key_words(key_ptr + i_b)
    token, logit, wanted = first_green(
        ids_ptr + i_b * stride_ib, values_ptr + i_b * stride_vb, p_context, low, high, threshold, full, max_strength,
        K, W, SELFHASH_LIST, BLOCK_K,
    )  # fmt: skip
    if i_q == 0:
        tl.store(token_ptr + i_b, token)
        tl.store(logit_ptr + i_b, logit)
        tl.store(wanted_ptr + i_b, wanted)
    best = tl.full((), -1, tl.int64)
    if wanted:
        best = best_of_quads(
            scores_ptr + i_b * stride_sb, p_context, low, high, i_q, stride_sv, vocab_size, threshold, W,
            SELFHASH_LIST, BLOCK_Q,
        )  # fmt: skip
    tl.store(best_ptr + i_b * tl.num_programs(1) + i_q, best)


@triton.jit
def _green_ladder_kernel(
    values_ptr, ids_ptr, scores_ptr, padded_ptr, tally_ptr, pending_ptr, ends_ptr, token_ptr, logit_ptr, wanted_ptr,
    best_ptr, candidates_ptr, needs_ptr, counts_ptr, carried_ptr,
    stride_vb, stride_ib, stride_sb, stride_sv, stride_pb, full, max_strength, parts, E, slots,
    W: tl.constexpr, DEDUPLICATE: tl.constexpr, USE_PDL: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
):  # fmt: skip
    """Two rungs of one row."""
    pdl_sync(USE_PDL)
    i_b = tl.program_id(0).to(tl.int64)
    o_p = tl.arange(0, BLOCK_PARTS)
    best = tl.max(tl.load(best_ptr + i_b * parts + o_p, mask=o_p < parts, other=-1), 0)
    scanned = best_token(best)
    score = tl.load(scores_ptr + i_b * stride_sb + scanned * stride_sv, mask=best >= 0, other=float("-inf"))
    wanted = tl.load(wanted_ptr + i_b) != 0
    green = tl.where(wanted, scanned, tl.load(token_ptr + i_b))
    green_logit = tl.where(wanted, score.to(tl.float32), tl.load(logit_ptr + i_b))
    original, logit = tl.load(ids_ptr + i_b * stride_ib), tl.load(values_ptr + i_b * stride_vb)
    count = two_rungs(
        candidates_ptr + 2 * i_b, needs_ptr + 2 * i_b, original, logit, green, green_logit, full, max_strength
    )
    _write_rest(
        candidates_ptr, counts_ptr, carried_ptr, padded_ptr, tally_ptr, pending_ptr, ends_ptr, i_b, count, stride_pb, 2,
        E, slots, W, DEDUPLICATE, 2, BLOCK_E, BLOCK_S,
    )  # fmt: skip


@triton.jit
def _race_ladder_kernel(
    values_ptr, ids_ptr, race_ptr, padded_ptr, tally_ptr, key_ptr, pending_ptr, ends_ptr,
    candidates_ptr, needs_ptr, counts_ptr, carried_ptr,
    stride_vb, stride_ib, stride_rb, stride_pb, max_strength, K, M, E, slots,
    W: tl.constexpr, SCALE: tl.constexpr, DEDUPLICATE: tl.constexpr, USE_PDL: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """The race of one row."""
    pdl_sync(USE_PDL)
    i_b = tl.program_id(0).to(tl.int64)
    low, high = key_words(key_ptr + i_b)
    p_context = padded_ptr + i_b * stride_pb + tl.load(tally_ptr + i_b)
    count = race_rungs(
        ids_ptr + i_b * stride_ib, values_ptr + i_b * stride_vb, race_ptr + i_b * stride_rb, p_context, low, high,
        candidates_ptr + i_b * M, needs_ptr + i_b * M, max_strength, K, M, W, SCALE, BLOCK_K,
    )  # fmt: skip
    _write_rest(
        candidates_ptr, counts_ptr, carried_ptr, padded_ptr, tally_ptr, pending_ptr, ends_ptr, i_b, count, stride_pb, M,
        E, slots, W, DEDUPLICATE, BLOCK_M, BLOCK_E, BLOCK_S,
    )  # fmt: skip


def _check(values, ids, race, scores, padded, tally, key, pending, ends, window, scheme, threshold) -> None:
    check_tensor("values", values, (torch.float32,), (None, None))
    batch, k = values.shape
    check(1 <= k <= MAX_K, f"values must have 1 to {MAX_K} columns", k, "shorten the record")
    check_tensor("ids", ids, (torch.int64,), (batch, k), values)
    check_tensor("race", race, (torch.float32,), (batch, k), values)
    check_tensor("scores", scores, FLOATS, (batch, None), values)
    check(scores.shape[1] >= 1, "scores must have at least 1 column", 0, "pass the logits")
    check_tensor("padded", padded, (torch.int64,), (batch, None), values)
    check(0 <= scheme <= RACE_SCALE, f"scheme must be in [0, {RACE_SCALE}]", scheme, "use Watermark.native")
    least = 1 if scheme == SELFHASH else 0
    check(least <= window <= MAX_CONTEXT, f"window must be in [{least}, {MAX_CONTEXT}]", window, "use the watermark's")
    check(padded.shape[1] > window, "padded must be wider than the window", padded.shape[1], "leave room for a text")
    check(0 <= threshold <= 1 << LIST_BITS, f"threshold must be in [0, 2**{LIST_BITS}]", threshold, "use gamma * 2**24")
    for name, tensor in (("tally", tally), ("key", key), ("pending", pending)):
        check_tensor(name, tensor, (torch.int64,), (batch,), values)
        check(tensor.is_contiguous(), f"{name} must be contiguous", f"stride {tensor.stride()}", "call .contiguous()")
    if ends is not None:
        check_tensor("ends", ends, (torch.int64,), (batch, None), values)
        check(ends.is_contiguous(), "ends must be contiguous", f"stride {ends.stride()}", "call .contiguous()")
        check(ends.shape[1] <= MAX_ENDS, f"ends must have at most {MAX_ENDS} columns", ends.shape[1], "name fewer")
    for name, tensor in (("values", values), ("ids", ids), ("race", race), ("padded", padded)):
        rows = tensor.shape[1] <= 1 or tensor.stride(1) == 1
        check(rows, f"{name} must have contiguous rows", f"stride {tensor.stride()}", "call .contiguous()")


def ladder_step(
    values: torch.Tensor,
    ids: torch.Tensor,
    race: torch.Tensor,
    scores: torch.Tensor,
    padded: torch.Tensor,
    tally: torch.Tensor,
    key: torch.Tensor,
    pending: torch.Tensor,
    ends: torch.Tensor | None,
    window: int,
    scheme: int,
    threshold: int,
    full: float,
    max_strength: float,
    deduplicate: bool,
    slots: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Candidates, needs [B, M], counts [B], carried [B, slots]; arguments as in `ladder_step_ref`, K <= 128, W <= 64.

    As `enumerate_candidates` in what is exact. Deterministic. Raises TypeError or ValueError naming the argument,
    before any launch; a tally beyond the text is not looked for, which would have to wait for the device.
    """
    _check(values, ids, race, scores, padded, tally, key, pending, ends, window, scheme, threshold)
    (batch, k), vocab_size = values.shape, scores.shape[1]
    width, found_ends = rungs(k, scheme, full, max_strength), 0 if ends is None else ends.shape[1]
    check(1 <= slots <= width, f"slots must be in [1, {width}], the rungs of the ladder", slots, "carry fewer")
    candidates, carried = ids.new_empty((batch, width)), ids.new_empty((batch, slots))
    needs, counts = values.new_empty((batch, width)), ids.new_empty((batch,))
    record = {
        "values_ptr": values, "ids_ptr": ids, "stride_vb": values.stride(0), "stride_ib": ids.stride(0),
        "padded_ptr": padded, "stride_pb": padded.stride(0), "tally_ptr": tally, "max_strength": max_strength,
        "W": window, "USE_PDL": uses_pdl(values),
    }  # fmt: skip
    rest = {
        "pending_ptr": pending, "ends_ptr": pending if ends is None else ends, "E": found_ends, "slots": slots,
        "candidates_ptr": candidates, "needs_ptr": needs, "counts_ptr": counts, "carried_ptr": carried,
        "DEDUPLICATE": deduplicate and window > 0, "BLOCK_S": BLOCK_S,
        "BLOCK_E": triton.next_power_of_2(found_ends) if found_ends else 0,
    }  # fmt: skip
    whole = {"key_ptr": key, "K": k, "BLOCK_K": triton.next_power_of_2(k)}
    if scheme in (RACE_TOP_K, RACE_SCALE):
        arguments = {**record, **whole, **rest, "race_ptr": race, "stride_rb": race.stride(0), "M": width,
                     "SCALE": scheme == RACE_SCALE, "BLOCK_M": triton.next_power_of_2(width)}  # fmt: skip
        launch(_race_ladder_kernel, (batch,), arguments, num_warps=4, enable_fp_fusion=False)
        return candidates, needs, counts, carried
    parts = cdiv(vocab_size, 4 * BLOCK_QUADS)
    found = {
        "token_ptr": ids.new_empty((batch,)), "logit_ptr": values.new_empty((batch,)),
        "wanted_ptr": ids.new_empty((batch,), dtype=torch.bool), "best_ptr": ids.new_empty((batch, parts)),
        "scores_ptr": scores, "stride_sb": scores.stride(0), "stride_sv": scores.stride(1), "full": full,
    }  # fmt: skip
    arguments = {**record, **whole, **found, "threshold": threshold, "vocab_size": vocab_size,
                 "SELFHASH_LIST": scheme == SELFHASH, "BLOCK_Q": BLOCK_QUADS}  # fmt: skip
    launch(_walk_kernel, (batch, parts), arguments, num_warps=4, enable_fp_fusion=False)
    arguments = {**record, **found, **rest, "parts": parts, "BLOCK_PARTS": triton.next_power_of_2(parts)}
    launch(_green_ladder_kernel, (batch,), arguments, num_warps=4, enable_fp_fusion=False)
    return candidates, needs, counts, carried
