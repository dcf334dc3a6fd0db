"""All that a captured step does before it looks ahead, in two launches for green lists and one for races.

    context = the last W tokens of the text;  ladder = enumerate_candidates(record, context, key)    (ladder_step_ref)
    one rung where the context stood there before, or where a candidate would end the text
    carried = the token that waits, else the first candidates

Green lists: every program of a row walks its record; if a green token beyond that is wanted, each scans its part of the
vocabulary. The second launch takes the best part and writes the ladder. Fused multiply-add is off, because
fl32(l + fl32(strength * delta)) must round twice.
"""

from collections import namedtuple

import torch
import triton
import triton.language as tl

from caw.ladder import rungs
from caw.op_indices import RACE_SCALE, RACE_TOP_K, SELFHASH
from caw.triton_kernels.enumerate_candidates import check_record, first_green, race_rungs, two_rungs
from caw.triton_kernels.green_argmax import BLOCK_QUADS, best_of_quads, best_token
from caw.triton_kernels.launching import FLOATS, cdiv, check, check_tensor, launch
from caw.triton_kernels.prf import LIST_BITS, MAX_CONTEXT, key_words

MAX_ENDS = 64
BLOCK_S = 512  # places of the text that are compared with the context at a time
# Arguments that kernels are given together. text: tokens of rows, what waits there and what ends them; scan: the first
# green token of the record, whether another is wanted, and the best one of each part of the vocabulary
Record = namedtuple("Record", "values_ptr ids_ptr stride_vb stride_ib K")
Text = namedtuple("Text", "padded_ptr tally_ptr pending_ptr ends_ptr stride_pb E")
Scan = namedtuple("Scan", "scores_ptr stride_sb stride_sv vocab_size token_ptr logit_ptr wanted_ptr best_ptr parts")
Rungs = namedtuple("Rungs", "candidates_ptr needs_ptr counts_ptr carried_ptr slots")


@triton.jit
def _write_rest(out, text, i_b, count, M, W: tl.constexpr, DEDUPLICATE: tl.constexpr, BLOCK_M: tl.constexpr,
                BLOCK_E: tl.constexpr, BLOCK_S: tl.constexpr):  # fmt: skip
    """One row's count and what is carried; the rungs stored before may turn out to be one too many."""
    tl.debug_barrier()  # other threads of this program read what was just stored
    o_m = tl.arange(0, BLOCK_M)
    m_m = o_m < M
    p_candidate = out.candidates_ptr + i_b * M
    original = tl.load(p_candidate)
    b_candidate = tl.load(p_candidate + o_m, mask=m_m, other=-2)  # [BLOCK_M]
    alone = count < 0
    if BLOCK_E > 0:
        o_e = tl.arange(0, BLOCK_E)
        b_end = tl.load(text.ends_ptr + i_b * text.E + o_e, mask=o_e < text.E, other=-3)  # [BLOCK_E]
        among = tl.sum((b_candidate[:, None] == b_end[None, :]).to(tl.int32), 1)
        alone = alone | (tl.sum(among, 0) > 0)
    if DEDUPLICATE:
        p_text = text.padded_ptr + i_b * text.stride_pb
        tally = tl.load(text.tally_ptr + i_b).to(tl.int32)
        seen = tl.full((), 0, tl.int32)
        for start in range(0, tally, BLOCK_S):
            o_s = start + tl.arange(0, BLOCK_S)
            same = o_s < tally
            for j in tl.static_range(W):
                b_token = tl.load(p_text + o_s + j, mask=o_s < tally, other=-2)  # [BLOCK_S]
                same = same & (b_token == tl.load(p_text + tally + j))
            seen += tl.sum(same.to(tl.int32), 0)
        alone = alone | (seen > 0)
    pending = tl.load(text.pending_ptr + i_b)
    b_candidate = tl.where(alone, original, b_candidate)
    tl.debug_barrier()  # what is written now, others of these threads still had to read
    tl.store(p_candidate + o_m, b_candidate, mask=m_m)
    tl.store(out.counts_ptr + i_b, tl.where(alone, 1, count).to(tl.int64))
    p_carried = out.carried_ptr + i_b * out.slots + o_m
    tl.store(p_carried, tl.where(pending >= 0, pending, b_candidate), mask=o_m < out.slots)


@triton.jit
def _walk_kernel(
    record, text, scan, key_ptr, threshold, full, max_strength,
    W: tl.constexpr, SELFHASH_LIST: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """The first green token of a row's record, and where that is wanted the best one of this program's tokens."""
    i_b = tl.program_id(0).to(tl.int64)
    i_q = tl.program_id(1)
    p_context = text.padded_ptr + i_b * text.stride_pb + tl.load(text.tally_ptr + i_b)
    lo, hi = key_words(key_ptr + i_b)
    token, logit, wanted = first_green(
        record.ids_ptr + i_b * record.stride_ib, record.values_ptr + i_b * record.stride_vb, p_context, lo, hi,
        threshold, full, max_strength, record.K, W, SELFHASH_LIST, BLOCK_K,
    )  # fmt: skip
    if i_q == 0:
        tl.store(scan.token_ptr + i_b, token)
        tl.store(scan.logit_ptr + i_b, logit)
        tl.store(scan.wanted_ptr + i_b, wanted)
    best = tl.full((), -1, tl.int64)
    if wanted:
        best = best_of_quads(
            scan.scores_ptr + i_b * scan.stride_sb, p_context, lo, hi, i_q, scan.stride_sv, scan.vocab_size,
            threshold, W, SELFHASH_LIST, BLOCK_Q,
        )  # fmt: skip
    tl.store(scan.best_ptr + i_b * tl.num_programs(1) + i_q, best)


@triton.jit
def _green_ladder_kernel(
    record, text, scan, out, full, max_strength,
    W: tl.constexpr, DEDUPLICATE: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
):  # fmt: skip
    """Two rungs of one row."""
    i_b = tl.program_id(0).to(tl.int64)
    o_p = tl.arange(0, BLOCK_PARTS)
    best = tl.max(tl.load(scan.best_ptr + i_b * scan.parts + o_p, mask=o_p < scan.parts, other=-1), 0)
    scanned = best_token(best)
    p_score = scan.scores_ptr + i_b * scan.stride_sb + scanned * scan.stride_sv
    score = tl.load(p_score, mask=best >= 0, other=float("-inf"))
    wanted = tl.load(scan.wanted_ptr + i_b) != 0
    green = tl.where(wanted, scanned, tl.load(scan.token_ptr + i_b))
    green_logit = tl.where(wanted, score.to(tl.float32), tl.load(scan.logit_ptr + i_b))
    original = tl.load(record.ids_ptr + i_b * record.stride_ib)
    logit = tl.load(record.values_ptr + i_b * record.stride_vb)
    count = two_rungs(
        out.candidates_ptr + 2 * i_b, out.needs_ptr + 2 * i_b, original, logit, green, green_logit, full, max_strength
    )
    _write_rest(out, text, i_b, count, 2, W, DEDUPLICATE, 2, BLOCK_E, BLOCK_S)


@triton.jit
def _race_ladder_kernel(
    record, text, out, race_ptr, stride_rb, key_ptr, max_strength, M,
    W: tl.constexpr, SCALE: tl.constexpr, DEDUPLICATE: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    i_b = tl.program_id(0).to(tl.int64)
    lo, hi = key_words(key_ptr + i_b)
    p_context = text.padded_ptr + i_b * text.stride_pb + tl.load(text.tally_ptr + i_b)
    count = race_rungs(
        record.ids_ptr + i_b * record.stride_ib, record.values_ptr + i_b * record.stride_vb,
        race_ptr + i_b * stride_rb, p_context, lo, hi, out.candidates_ptr + i_b * M, out.needs_ptr + i_b * M,
        max_strength, record.K, M, W, SCALE, BLOCK_K,
    )  # fmt: skip
    _write_rest(out, text, i_b, count, M, W, DEDUPLICATE, BLOCK_M, BLOCK_E, BLOCK_S)


def _check(values, ids, race, scores, padded, tally, key, pending, ends, window, scheme, threshold) -> None:
    batch, _ = check_record(values, ids, race)
    check_tensor("scores", scores, FLOATS, (batch, None), values)
    check(scores.shape[1] >= 1, "scores must have at least 1 column", 0, "pass the logits")
    check_tensor("padded", padded, (torch.int64,), (batch, None), values)
    check(0 <= scheme <= RACE_SCALE, f"scheme must be in [0, {RACE_SCALE}]", scheme, "use Watermark.native")
    least = 1 if scheme == SELFHASH else 0
    check(least <= window <= MAX_CONTEXT, f"window must be in [{least}, {MAX_CONTEXT}]", window, "use the watermark's")
    check(padded.shape[1] > window, "padded must be wider than the window", padded.shape[1], "leave room for a text")
    rows = padded.shape[1] <= 1 or padded.stride(1) == 1
    check(rows, "padded must have contiguous rows", f"stride {padded.stride()}", "call .contiguous()")
    check(0 <= threshold <= 1 << LIST_BITS, f"threshold must be in [0, 2**{LIST_BITS}]", threshold, "use gamma * 2**24")
    for name, tensor in (("tally", tally), ("key", key), ("pending", pending)):
        check_tensor(name, tensor, (torch.int64,), (batch,), values)
        check(tensor.is_contiguous(), f"{name} must be contiguous", f"stride {tensor.stride()}", "call .contiguous()")
    if ends is not None:
        check_tensor("ends", ends, (torch.int64,), (batch, None), values)
        check(ends.is_contiguous(), "ends must be contiguous", f"stride {ends.stride()}", "call .contiguous()")
        check(ends.shape[1] <= MAX_ENDS, f"ends must have at most {MAX_ENDS} columns", ends.shape[1], "name fewer")


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
    width, most_ends = rungs(k, scheme, full, max_strength), 0 if ends is None else ends.shape[1]
    check(1 <= slots <= width, f"slots must be in [1, {width}], the rungs of the ladder", slots, "carry fewer")
    candidates, carried = ids.new_empty((batch, width)), ids.new_empty((batch, slots))
    needs, counts = values.new_empty((batch, width)), ids.new_empty((batch,))
    every = {
        "record": Record(values, ids, values.stride(0), ids.stride(0), k),
        "text": Text(padded, tally, pending, ends, padded.stride(0), most_ends),
        "max_strength": max_strength, "W": window,
    }  # fmt: skip
    rest = {
        "out": Rungs(candidates, needs, counts, carried, slots), "DEDUPLICATE": deduplicate and window > 0,
        "BLOCK_S": BLOCK_S, "BLOCK_E": triton.next_power_of_2(most_ends) if most_ends else 0,
    }  # fmt: skip
    of_key = {"key_ptr": key, "BLOCK_K": triton.next_power_of_2(k)}
    if scheme in (RACE_TOP_K, RACE_SCALE):
        arguments = {**every, **of_key, **rest, "race_ptr": race, "stride_rb": race.stride(0), "M": width,
                     "SCALE": scheme == RACE_SCALE, "BLOCK_M": triton.next_power_of_2(width)}  # fmt: skip
        launch(_race_ladder_kernel, (batch,), arguments, num_warps=4, enable_fp_fusion=False)
        return candidates, needs, counts, carried
    parts = cdiv(vocab_size, 4 * BLOCK_QUADS)
    token, logit, best = ids.new_empty((batch,)), values.new_empty((batch,)), ids.new_empty((batch, parts))
    wanted = ids.new_empty((batch,), dtype=torch.bool)
    every |= {"scan": Scan(scores, *scores.stride(), vocab_size, token, logit, wanted, best, parts), "full": full}
    arguments = {**every, **of_key, "threshold": threshold, "SELFHASH_LIST": scheme == SELFHASH,
                 "BLOCK_Q": BLOCK_QUADS}  # fmt: skip
    launch(_walk_kernel, (batch, parts), arguments, num_warps=4, enable_fp_fusion=False)
    arguments = {**every, **rest, "BLOCK_PARTS": triton.next_power_of_2(parts)}
    launch(_green_ladder_kernel, (batch,), arguments, num_warps=4, enable_fp_fusion=False)
    return candidates, needs, counts, carried
