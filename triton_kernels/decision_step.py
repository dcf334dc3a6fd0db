"""Evaluate, select, emit, end texts, and note it all down, in one launch (decision_step_ref).

    capacity = sigmoid(W3 relu(W2 relu(W1 (x - mean) / scale + b1) + b2) + b3)          (paper, equation 1)
    x        = log p of the K likeliest tokens of each window position, then the log of each class's probability there
    strength, choice, token, end of text, output ring                                   (decision_step_ref)

One program a sequence. Each reads where the ring stands; the last one to finish moves it on. To know who is last they
count in the upper half of the very word that holds the place, as commit_kv does with lengths. Fused multiply-add is
off: see evaluator_step.
"""

from collections import namedtuple

import torch
import triton
import triton.language as tl

from caw.capacity import MASS_FLOOR
from caw.op_indices import BROKEN, NOT_EMITTED, RULES, TRANSFORMS
from caw.triton_kernels.evaluator_step import (
    MAX_EXTRA,
    MAX_POSITIONS,
    MAX_RUNGS,
    NUM_WARPS,
    Ladder,
    Network,
    Pending,
    at_least,
    check_contiguous,
    check_weights,
    choose,
    first_layer,
    later_layers,
    network_blocks,
    strength_of,
)
from caw.triton_kernels.launching import check, check_tensor, launch

MAX_ENDS = 64
MASS_LOW = tl.constexpr(MASS_FLOOR)
NO_TOKEN, NOT_FINITE = tl.constexpr(NOT_EMITTED), tl.constexpr(BROKEN)


# Arguments that the kernel is given together. window: records of each position; text: what is written of a text and
# what ends it, E ends each; ring: of `size` places, `columns` integers wide; out: what the launcher returns
Window = namedtuple("Window", "x_ptrs id_ptrs strides")
Text = namedtuple("Text", "padded_ptr tally_ptr budgets_ptr ends_ptr active_ptr stride_pb window room E")
Ring = namedtuple("Ring", "integers_ptr floats_ptr cursor_ptr size columns")
OUTPUTS = ("tokens", "choice", "chosen", "shown", "strength", "capacity", "emitted", "moved", "broken")
Out = namedtuple("Out", [f"{name}_ptr" for name in OUTPUTS])


@triton.jit
def _add_masses(hidden, p_prob, p_id, network, o_h, start,
                K: tl.constexpr, CLASSES: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """hidden + W1[:, start : start + CLASSES] x for the class masses of one position."""
    o_k = tl.arange(0, BLOCK_K)
    m_k = o_k < K
    b_prob = tl.load(p_prob + o_k, mask=m_k, other=0.0)  # [BLOCK_K]
    b_id = tl.load(p_id + o_k, mask=m_k, other=-1)  # [BLOCK_K]
    inside = (b_id >= 0) & (b_id < network.known)
    p_class = network.class_ptr + tl.where(inside, b_id, 0)
    b_class = tl.load(p_class, mask=inside, other=0).to(tl.int32)  # [BLOCK_K]
    o_c = tl.arange(0, BLOCK_C)
    m_c = o_c < CLASSES
    # a product, not a choice: NaN must come through
    member = (b_class[None, :] == o_c[:, None]).to(tl.float32)
    mass = tl.sum(member * b_prob[None, :], 1)
    b_mean = tl.load(network.mean_ptr + start + o_c, mask=m_c, other=0.0)  # [BLOCK_C]
    b_scale = tl.load(network.scale_ptr + start + o_c, mask=m_c, other=1.0)  # [BLOCK_C]
    x = tl.where(m_c, (tl.log(at_least(mass, MASS_LOW)) - b_mean) / b_scale, 0.0)
    p_w = network.w1_ptr + o_h[:, None] * network.F + start + o_c[None, :]
    b_w = tl.load(p_w, mask=(o_h < network.H)[:, None] & m_c[None, :], other=0.0)  # [BLOCK_H, BLOCK_C]
    return hidden + tl.sum(b_w * x[None, :], 1)


@triton.jit
def _capacity(
    window, i_b, network, K: tl.constexpr, TRANSFORM: tl.constexpr, CLASSES: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_F: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    o_h = tl.arange(0, BLOCK_H)
    hidden = first_layer(window.x_ptrs, window.strides, i_b, network, o_h, K, TRANSFORM, BLOCK_F)
    if CLASSES > 0:
        for i in tl.static_range(len(window.x_ptrs)):
            offset = i_b * window.strides[i]
            hidden = _add_masses(
                hidden, window.x_ptrs[i] + offset, window.id_ptrs[i] + offset, network, o_h,
                len(window.x_ptrs) * K + i * CLASSES, K, CLASSES, BLOCK_K, BLOCK_C,
            )  # fmt: skip
    return later_layers(hidden, network, o_h, BLOCK_J)


@triton.jit
def _ends(ends_ptr, token, E, BLOCK_E: tl.constexpr):
    """Whether the token is among E ends; BLOCK_E 0: there are none."""
    among = token != token
    if BLOCK_E > 0:
        o_e = tl.arange(0, BLOCK_E)
        b_end = tl.load(ends_ptr + o_e, mask=o_e < E, other=-3)  # [BLOCK_E]
        among = tl.sum((b_end == token).to(tl.int32), 0) > 0
    return among


@triton.jit
def _decision_kernel(
    window, network, ladder, pending, text, ring, out, factor_ptr, given_ptr, lse_ptr, carried_ptr,
    theta, beta, full, slots,
    K: tl.constexpr, TRANSFORM: tl.constexpr, CLASSES: tl.constexpr, RULE: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """One sequence. Without a network its strength is beta * factor, or 0 where what is given is not above theta."""
    i_b = tl.program_id(0).to(tl.int64)
    EVALUATED: tl.constexpr = network is not None
    o_m = tl.arange(0, BLOCK_M)
    p_candidate = ladder.candidates_ptr + i_b * ladder.stride_cb
    waiting = tl.load(pending.token_ptr + i_b) >= 0
    count = tl.full((), 1, tl.int64)
    if ladder.counts_ptr is not None:
        count = tl.load(ladder.counts_ptr + i_b)
    capacity = tl.full((), float("nan"), tl.float32)
    strength = tl.full((), 0.0, tl.float32)
    if EVALUATED:
        capacity = _capacity(window, i_b, network, K, TRANSFORM, CLASSES, BLOCK_H, BLOCK_F, BLOCK_J, BLOCK_K, BLOCK_C)
        strength = strength_of(capacity, theta, beta) * tl.load(factor_ptr + i_b)
        strength = tl.where(waiting, tl.load(pending.strength_ptr + i_b), strength)
        capacity = tl.where(waiting, tl.load(pending.capacity_ptr + i_b), capacity)
    else:
        strength = beta * tl.load(factor_ptr + i_b)
        if given_ptr is not None:
            strength = tl.where(tl.load(given_ptr + i_b) > theta, strength, 0.0)
    p_need = ladder.needs_ptr + i_b * ladder.stride_nb
    choice = choose(p_candidate, p_need, count, strength, full, ladder.M, RULE, BLOCK_M)

    token = tl.load(p_candidate + choice)
    b_candidate = tl.load(p_candidate + o_m, mask=o_m < ladder.M, other=0)  # [BLOCK_M]
    active = tl.load(text.active_ptr + i_b) != 0
    broken = active & ((tl.abs(tl.load(lse_ptr + i_b)) < float("inf")) == 0)
    reach = slots
    if carried_ptr is not None:
        reach = tl.load(carried_ptr + i_b)
    overflow = (choice >= reach) & active & (waiting == 0)
    emitted = active & (overflow == 0)
    tally = tl.load(text.tally_ptr + i_b)
    after = tally + emitted.to(tl.int64)
    ended = _ends(text.ends_ptr + i_b * text.E, token, text.E, BLOCK_E) | (after >= tl.load(text.budgets_ptr + i_b))
    stays = active & ((emitted & ended) == 0)
    place = tl.load(ring.cursor_ptr) & 0xFFFFFFFF
    tl.debug_barrier()  # what is written now, slower threads of this program still had to read

    tl.store(pending.token_ptr + i_b, tl.where(overflow, token, -1))
    tl.store(pending.strength_ptr + i_b, strength)
    tl.store(pending.capacity_ptr + i_b, capacity)
    p_text = text.padded_ptr + i_b * text.stride_pb + tl.minimum(tally + text.window, text.room - 1)
    tl.store(p_text, token, mask=emitted)
    tl.store(text.tally_ptr + i_b, after)
    tl.store(text.active_ptr + i_b, stays)
    tl.store(out.tokens_ptr + i_b, token)
    tl.store(out.choice_ptr + i_b, choice)
    tl.store(out.chosen_ptr + i_b, tl.where(emitted & (waiting == 0) & EVALUATED, choice, 0))
    tl.store(out.shown_ptr + i_b, count)
    tl.store(out.strength_ptr + i_b, strength)
    tl.store(out.capacity_ptr + i_b, capacity)
    tl.store(out.emitted_ptr + i_b, emitted)
    tl.store(out.moved_ptr + i_b, emitted & stays)
    tl.store(out.broken_ptr + i_b, broken)

    row = place * tl.num_programs(0) + i_b
    p_ring = ring.integers_ptr + row * ring.columns
    tl.store(p_ring, tl.where(broken, NOT_FINITE, tl.where(emitted, token, NO_TOKEN)))
    if ring.floats_ptr is not None:
        tl.store(p_ring + 1, choice)
        tl.store(p_ring + 2, count)
        tl.store(p_ring + 3 + o_m, b_candidate, mask=o_m < ladder.M)
        tl.store(ring.floats_ptr + 2 * row, strength)
        tl.store(ring.floats_ptr + 2 * row + 1, capacity)
    arrived = tl.atomic_add(ring.cursor_ptr, 1 << 32) >> 32
    if arrived == tl.num_programs(0) - 1:
        tl.store(ring.cursor_ptr, (place + 1) % ring.size)


def _check_window(probs, ids, weights, table, k: int, transform: int, classes: int, batch: int, like) -> None:
    check(len(ids) == len(probs), f"ids must be {len(probs)} tensors, as probs", len(ids), "pass whole records")
    known = 1 <= len(probs) <= MAX_POSITIONS
    check(known, f"probs must hold 1 to {MAX_POSITIONS} window positions", len(probs), "use a window within (2, 1)")
    last = len(TRANSFORMS) - 1
    check(0 <= transform <= last, f"transform must be in [0, {last}]", transform, "use TRANSFORMS.index")
    for i, (p, at) in enumerate(zip(probs, ids, strict=True)):
        check_tensor(f"probs[{i}]", p, (torch.float32,), (batch, None), like)
        check(1 <= k <= min(p.shape[1], MAX_RUNGS), f"k must be in [1, {p.shape[1]}], the columns of probs[{i}]", k,
              "keep more values")  # fmt: skip
        check_tensor(f"ids[{i}]", at, (torch.int64,), (batch, p.shape[1]), like)
        rows = p.shape[1] == 1 or p.stride(1) == 1
        check(rows, f"probs[{i}] must have contiguous rows", f"stride {p.stride()}", "call .contiguous()")
        check(at.stride() == p.stride(), f"ids[{i}] must have the strides of probs[{i}]", at.stride(), "copy both")
    if table is not None:
        check_tensor("table", table, (torch.uint8,), (None,), like)
        check(1 <= classes * len(probs) <= MAX_EXTRA, f"classes must give 1 to {MAX_EXTRA} inputs", classes, "use None")
        check(table.is_contiguous() and table.numel(), "table must be contiguous and not empty", "another", "copy it")
    check_weights(weights, len(probs) * (k + (0 if table is None else classes)), like)


def _check_rows(given: dict[str, torch.Tensor | None], batch: int, like: torch.Tensor) -> None:
    """Everything [B] that there is."""
    for name, tensor in ((name, tensor) for name, tensor in given.items() if tensor is not None):
        floats = name in ("pending_strength", "pending_capacity", "factor", "given", "logsumexp")
        dtype = torch.float32 if floats else torch.bool if name == "active" else torch.int64
        check_tensor(name, tensor, (dtype,), (batch,), like)
        check_contiguous(**{name: tensor})


def _check_ring(padded, ends, ring, floats, cursor, window: int, batch: int, rungs: int) -> None:
    check_tensor("padded", padded, (torch.int64,), (batch, None), cursor)
    check(0 <= window < padded.shape[1], "padded must be wider than the window", padded.shape[1], "leave room")
    check(padded.stride(1) == 1, "padded must have contiguous rows", f"stride {padded.stride()}", "copy it")
    check_tensor("ends", ends, (torch.int64,), (batch, None), cursor)
    check(ends.shape[1] <= MAX_ENDS, f"ends must have at most {MAX_ENDS} columns", ends.shape[1], "name fewer")
    check_tensor("ring", ring, (torch.int64,), (None, batch, 1 if floats is None else 3 + rungs), cursor)
    check(ring.shape[0] >= 1, "ring must have at least 1 place", 0, "make it longer")
    check_tensor("cursor", cursor, (torch.int64,), (1,), cursor)
    if floats is not None:
        check_tensor("floats", floats, (torch.float32,), (ring.shape[0], batch, 2), cursor)
        check_contiguous(floats=floats)
    check_contiguous(ends=ends, ring=ring, cursor=cursor)


def _network(probs, ids, weights, table, k: int, classes: int) -> dict[str, object]:
    """The kernel's arguments about window and network, None without one."""
    if not weights:
        sizes = dict.fromkeys(("CLASSES", "BLOCK_H", "BLOCK_F", "BLOCK_J", "BLOCK_K", "BLOCK_C"), 0)
        return {"window": None, "network": None, "K": k, **sizes}
    classes, hidden = 0 if table is None else classes, weights[2].shape[0]
    inputs, known = len(probs) * (k + classes), 0 if table is None else table.numel()
    return {
        "window": Window(tuple(probs), tuple(ids), tuple(p.stride(0) for p in probs)),
        "network": Network(*weights, hidden, inputs, table, known), "K": k, "CLASSES": classes,
        **network_blocks(hidden, k), "BLOCK_K": triton.next_power_of_2(k),
        "BLOCK_C": triton.next_power_of_2(max(classes, 1)),
    }  # fmt: skip


def decision_step(
    probs: list[torch.Tensor],
    ids: list[torch.Tensor],
    weights: list[torch.Tensor],
    table: torch.Tensor | None,
    candidates: torch.Tensor,
    needs: torch.Tensor,
    counts: torch.Tensor | None,
    pending: list[torch.Tensor],
    factor: torch.Tensor,
    given: torch.Tensor | None,
    logsumexp: torch.Tensor,
    padded: torch.Tensor,
    tally: torch.Tensor,
    budgets: torch.Tensor,
    ends: torch.Tensor,
    active: torch.Tensor,
    ring: torch.Tensor,
    floats: torch.Tensor | None,
    cursor: torch.Tensor,
    slots: int,
    window: int,
    k: int,
    transform: int,
    classes: int,
    theta: float,
    beta: float,
    rule: int,
    full: float,
    carried: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Nine tensors [B]; arguments and result as in `decision_step_ref`, width h <= 512, at most 128 rungs and 64 ends.

    Mutates what that mutates. Deterministic. Integers equal the reference's unless the strengths lie on either side of
    a rung (row `margin/decision`).

    Raises:
        TypeError, ValueError: naming the argument, before any launch.
    """
    check_tensor("candidates", candidates, (torch.int64,), (None, None))
    batch, rungs = candidates.shape
    check(1 <= rungs <= MAX_RUNGS, f"candidates must have 1 to {MAX_RUNGS} columns", rungs, "shorten the ladder")
    check_tensor("needs", needs, (torch.float32,), (batch, rungs), candidates)
    for name, tensor in (("candidates", candidates), ("needs", needs)):
        rows = rungs == 1 or tensor.stride(1) == 1
        check(rows, f"{name} must have contiguous rows", f"stride {tensor.stride()}", "call .contiguous()")
    check(0 <= rule < len(RULES), f"rule must be in [0, {len(RULES) - 1}]", rule, "use RULES.index")
    check(slots >= 1, "slots must be at least 1", slots, "forward one candidate")
    check(len(pending) == 3, "pending must be 3 tensors", len(pending), "pass tokens, strengths and capacities")
    waiting = dict(zip(("pending", "pending_strength", "pending_capacity"), pending, strict=True))
    _check_rows({"counts": counts, "factor": factor, "given": given, "logsumexp": logsumexp, "tally": tally,
                 "budgets": budgets, "active": active, "carried": carried, **waiting}, batch, candidates)  # fmt: skip
    _check_ring(padded, ends, ring, floats, cursor, window, batch, rungs)
    if weights:
        _check_window(probs, ids, weights, table, k, transform, classes, batch, candidates)
    kinds = [tally] * 4 + [factor] * 2 + [active] * 3
    outputs = tuple(torch.empty_like(kind) for kind in kinds)
    stride_cb, stride_nb, most_ends = candidates.stride(0), needs.stride(0), ends.shape[1]
    launch(
        _decision_kernel,
        (batch,),
        {
            **_network(probs, ids, weights, table, k, classes),
            "ladder": Ladder(candidates, needs, counts, stride_cb, stride_nb, rungs), "pending": Pending(*pending),
            "text": Text(padded, tally, budgets, ends, active, padded.stride(0), window, padded.shape[1], most_ends),
            "ring": Ring(ring, floats, cursor, ring.shape[0], ring.shape[2]), "out": Out(*outputs),
            "factor_ptr": factor, "given_ptr": given, "lse_ptr": logsumexp, "carried_ptr": carried,
            "theta": theta, "beta": beta, "full": full, "slots": slots,
            "TRANSFORM": transform, "RULE": rule,
            "BLOCK_M": triton.next_power_of_2(rungs),
            "BLOCK_E": triton.next_power_of_2(most_ends) if most_ends else 0,
        },
        num_warps=NUM_WARPS if weights else 1,
        maxnreg=128,  # the assembler would rather spill than have fewer programs on a multiprocessor, of which few run
        enable_fp_fusion=False,
    )  # fmt: skip
    return outputs
