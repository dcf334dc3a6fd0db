"""Make the chosen sibling part of its sequence: keys and values of all layers, length, and the state, in one launch.

    store[:, :, b, :, T_b] = scratch[:, :, b, choice_b],   T_b += 1        where active       (commit_kv_ref)
    logits_b = step_logits[b, choice_b],   p_{i-1} = p_i,   p_i = following                   (commit_step_ref)

Every program of a sequence reads T_b and the last one to finish advances it. To know who is last they count in the
upper half of the very word that holds T_b, which is zero again afterwards: no workspace, no second launch, no spinning.
"""

from collections import namedtuple

import torch
import triton
import triton.language as tl

from caw.triton_kernels.launching import FLOATS, cdiv, check, check_lengths, check_tensor, launch

BLOCK = 2048  # elements a program moves
MAX_POSITIONS = 3  # records that state can hold: p_i, p_{i-1}, p_{i-2}
MAX_K = 128


Record = namedtuple("Record", "values_ptr ids_ptr probs_ptr lse_ptr")


@triton.jit
def _copy_kv(store_ptr, store_strides, scratch_ptr, scratch_strides, i_b, i_part, choice, place, moved, parts, row,
             D: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """One block of the HK * D elements of one layer's keys or values."""
    stride_sl, stride_sk, stride_sb, stride_sh, stride_sn, stride_sd = store_strides
    stride_cl, stride_ck, stride_cb, stride_cc, stride_ch, stride_cd = scratch_strides
    i_lk = (i_part // parts).to(tl.int64)  # layer * 2 + (0 keys, 1 values)
    o_e = (i_part % parts) * BLOCK + tl.arange(0, BLOCK)
    m_e = o_e < row * moved
    o_h = o_e // D
    o_d = o_e % D
    p_from = scratch_ptr + (i_lk // 2) * stride_cl + (i_lk % 2) * stride_ck + i_b * stride_cb + choice * stride_cc
    p_to = store_ptr + (i_lk // 2) * stride_sl + (i_lk % 2) * stride_sk + i_b * stride_sb + place * stride_sn
    b_e = tl.load(p_from + o_h * stride_ch + o_d * stride_cd, mask=m_e)  # [BLOCK]
    tl.store(p_to + o_h.to(tl.int64) * stride_sh + o_d * stride_sd, b_e, mask=m_e)


@triton.jit
def _move_record(new, old, i_b, i_old, moved, K, BLOCK_K: tl.constexpr):
    """Row i_old of record `old` to row i_b of `new`, contiguous [..., K] tensors."""
    m_k = tl.arange(0, BLOCK_K) < K * moved
    o_k = i_b * K + tl.arange(0, BLOCK_K)
    o_f = i_old * K + tl.arange(0, BLOCK_K)
    tl.store(new.values_ptr + o_k, tl.load(old.values_ptr + o_f, mask=m_k), mask=m_k)
    tl.store(new.ids_ptr + o_k, tl.load(old.ids_ptr + o_f, mask=m_k), mask=m_k)
    tl.store(new.probs_ptr + o_k, tl.load(old.probs_ptr + o_f, mask=m_k), mask=m_k)
    tl.store(new.lse_ptr + i_b, tl.load(old.lse_ptr + i_old, mask=moved > 0), mask=moved > 0)


@triton.jit
def _commit_kernel(
    store_ptr, store_strides, scratch_ptr, scratch_strides, choice_ptr, lengths_ptr, active_ptr, alive_ptr,
    logits_ptr, stride_lb, step_ptr, stride_tb, stride_tc, records, slots, size, parts, kv_programs, row, vocab_size,
    K, fan, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One block of work of one sequence: keys and values, then (if there are records) records, then logits.

    Record 0 is the new one, of `fan` candidates of each sequence or (0) of the chosen one; 1 is p_i, 2 is p_{i-1}, 3 is
    p_{i-2}.
    """
    i_b = tl.program_id(1).to(tl.int64)
    i_part = tl.program_id(0)
    length = tl.load(lengths_ptr + i_b) & 0xFFFFFFFF
    choice = tl.minimum(tl.maximum(tl.load(choice_ptr + i_b), 0), slots - 1)
    # a full sequence stays as it is: there is no place to write to
    moved = tl.where(tl.load(active_ptr + i_b), 1, 0) * tl.where(length < size, 1, 0)
    if i_part < kv_programs:
        _copy_kv(store_ptr, store_strides, scratch_ptr, scratch_strides, i_b, i_part, choice, length, moved, parts,
                 row, D, BLOCK)  # fmt: skip
    if records is not None:
        if i_part == kv_programs:  # one program, oldest first, so that nothing is overwritten before it is read
            i_new = tl.where(fan > 0, i_b * fan + choice, i_b)
            for i in tl.static_range(len(records) - 1, 0, -1):
                _move_record(records[i], records[i - 1], i_b, i_new if i == 1 else i_b, moved, K, BLOCK_K)
        if i_part > kv_programs:
            o_v = (i_part - kv_programs - 1) * BLOCK + tl.arange(0, BLOCK)
            m_v = o_v < vocab_size * moved
            b_v = tl.load(step_ptr + i_b * stride_tb + choice * stride_tc + o_v, mask=m_v)  # [BLOCK]
            tl.store(logits_ptr + i_b * stride_lb + o_v, b_v.to(tl.float32), mask=m_v)
    # without this a slow warp could still have to read the length when the last program has advanced it
    tl.debug_barrier()
    arrived = tl.atomic_add(lengths_ptr + i_b, 1 << 32) >> 32
    if arrived == tl.num_programs(0) - 1:
        after = length + moved
        if alive_ptr is not None:
            after = tl.where(tl.load(alive_ptr + i_b), after, 0)
        tl.store(lengths_ptr + i_b, after)


def _check(store, scratch, choice, lengths, active) -> None:
    check_tensor("store", store, FLOATS, (None, 2, None, None, None, None))
    layers, _, batch, heads, size, dim = store.shape
    check_tensor("scratch", scratch, (store.dtype,), (layers, 2, batch, None, heads, dim), store)
    check(scratch.shape[3] >= 1, "scratch must have at least 1 candidate slot", scratch.shape[3], "allocate more")
    check_tensor("choice", choice, (torch.int64,), (batch,), store)
    check_tensor("lengths", lengths, (torch.int64,), (batch,), store)
    check_tensor("active", active, (torch.bool,), (batch,), store)
    for name, tensor in (("choice", choice), ("lengths", lengths), ("active", active)):
        check(tensor.is_contiguous(), f"{name} must be contiguous", f"stride {tensor.stride()}", "call .contiguous()")
    check_lengths(lengths, size)


def _launch(store, scratch, choice, lengths, active, logits=None, step_logits=None, records=(), k=1, alive=None):
    """Start the kernel; `records` is the new record, then those it moves, four tensors each, or empty."""
    layers, _, batch, heads, size, dim = store.shape
    parts = cdiv(heads * dim, BLOCK)
    kv_programs = layers * 2 * parts
    # a choice is clamped to the candidates that have both keys and logits: beyond either lies a wild access
    programs, slots, vocab_size, fan = kv_programs, scratch.shape[3], 0, 0
    if records:
        slots, vocab_size = min(slots, step_logits.shape[1]), logits.shape[1]
        programs += 1 + cdiv(vocab_size, BLOCK)
        fan = step_logits.shape[1] if records[0].shape[0] != batch else 0
    launch(
        _commit_kernel,
        (programs, batch),
        {
            "store_ptr": store, "store_strides": store.stride(), "scratch_ptr": scratch,
            "scratch_strides": scratch.stride(), "choice_ptr": choice, "lengths_ptr": lengths, "active_ptr": active,
            "alive_ptr": alive, "logits_ptr": logits, "stride_lb": logits.stride(0) if records else 0,
            "step_ptr": step_logits, "stride_tb": step_logits.stride(0) if records else 0,
            "stride_tc": step_logits.stride(1) if records else 0,
            "records": tuple(Record(*records[i : i + 4]) for i in range(0, len(records), 4)) or None, "fan": fan,
            "slots": slots, "size": size, "parts": parts, "kv_programs": kv_programs, "row": heads * dim,
            "vocab_size": vocab_size, "K": k, "D": dim, "BLOCK": BLOCK,
            "BLOCK_K": triton.next_power_of_2(k),
        },
        num_warps=4,
    )  # fmt: skip


def commit_kv(
    store: torch.Tensor, scratch: torch.Tensor, choice: torch.Tensor, lengths: torch.Tensor, active: torch.Tensor
) -> None:
    """Copy the chosen keys and values in place and advance lengths; arguments as in `commit_kv_ref`.

    Any strides; mutates store and lengths. An inactive row is not touched at all; neither is an active one that is full
    (a choice or length out of range is clamped or ignored, never a wild access). Deterministic.

    Raises:
        TypeError, ValueError: naming the argument, before any launch. Lengths past the cache are found on a GPU only
            with TRITON_DEBUG=1.
    """
    _check(store, scratch, choice, lengths, active)
    _launch(store, scratch, choice, lengths, active)


def commit_step(
    store: torch.Tensor,
    scratch: torch.Tensor,
    choice: torch.Tensor,
    lengths: torch.Tensor,
    active: torch.Tensor,
    logits: torch.Tensor,
    step_logits: torch.Tensor,
    records: list[torch.Tensor],
    following: list[torch.Tensor],
    alive: torch.Tensor | None = None,
) -> None:
    """`commit_kv` and the state in the same launch; arguments as in `commit_step_ref`, K <= 128, up to three records.

    Mutates store, lengths, logits and records. Raises TypeError or ValueError naming the argument, before any launch.
    """
    _check(store, scratch, choice, lengths, active)
    batch, slots = store.shape[2], scratch.shape[3]
    check_tensor("logits", logits, (torch.float32,), (batch, None), store)
    check_tensor("step_logits", step_logits, FLOATS, (batch, None, logits.shape[1]), store)
    if alive is not None:
        check_tensor("alive", alive, (torch.bool,), (batch,), store)
        check(alive.is_contiguous(), "alive must be contiguous", f"stride {alive.stride()}", "call .contiguous()")
    check(1 <= step_logits.shape[1] <= slots, f"step_logits must have 1 to {slots} candidates, the scratch's",
          step_logits.shape[1], "forward one candidate at least, or allocate more slots")  # fmt: skip
    for name, tensor in (("logits", logits), ("step_logits", step_logits)):
        rows = tensor.shape[-1] == 1 or tensor.stride(-1) == 1
        check(rows, f"{name} must have contiguous rows", f"stride {tensor.stride()}", "call .contiguous()")
    wanted = [4 * n for n in range(1, MAX_POSITIONS + 1)]
    check(len(records) in wanted, f"records must be 4 tensors for each of 1 to {MAX_POSITIONS} positions",
          len(records), "pass values, ids, probs, logsumexp of each")  # fmt: skip
    check(len(following) == 4, "following must be 4 tensors", len(following), "pass one record")
    k, fan = following[0].shape[-1], batch * step_logits.shape[1]
    news = fan if following[0].shape[0] == fan else batch
    check(1 <= k <= MAX_K, f"following must have 1 to {MAX_K} columns", k, "shorten the record")
    for name, group in (("following", following), ("records", records)):
        for i, tensor in enumerate(group):
            dtype = torch.int64 if i % 4 == 1 else torch.float32
            rows = news if name == "following" else batch
            shape = (rows,) if i % 4 == 3 else (rows, k)
            check_tensor(f"{name}[{i}]", tensor, (dtype,), shape, store)
            check(tensor.is_contiguous(), f"{name}[{i}] must be contiguous", f"stride {tensor.stride()}",
                  "call .contiguous()")  # fmt: skip
    _launch(store, scratch, choice, lengths, active, logits, step_logits, [*following, *records], k, alive)
