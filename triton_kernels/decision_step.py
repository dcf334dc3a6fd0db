"""Evaluate, select, emit, end texts, and note it all down, in one launch (decision_step_ref).

    capacity = sigmoid(W3 relu(W2 relu(W1 (x - mean) / scale + b1) + b2) + b3)          (paper, equation 1)
    x        = log p of the K likeliest tokens of each window position, then the log of each class's probability there
    strength, choice, token, end of text, output ring                                   (decision_step_ref)

One program a sequence. Each reads where the ring stands; the last one to finish moves it on. To know who is last they
count in the upper half of the very word that holds the place, as commit_kv does with lengths. Fused multiply-add is
off: see evaluator_step.
"""

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
    at_least,
    check_contiguous,
    check_weights,
    choose,
    first_layer,
    later_layers,
    network_blocks,
    strength_of,
)
from caw.triton_kernels.launching import check, check_tensor, launch, uses_pdl
from caw.triton_kernels.pdl import pdl_sync, prefetch_floats

MAX_ENDS = 64
LINES = tl.constexpr(32 * NUM_WARPS)  # a thread asks for one line of the network's weights at a time
MASS_LOW = tl.constexpr(MASS_FLOOR)
NO_TOKEN, NOT_FINITE = tl.constexpr(NOT_EMITTED), tl.constexpr(BROKEN)


@triton.jit
def _add_masses(hidden, p_prob, p_id, class_ptr, mean_ptr, scale_ptr, w1_ptr, o_h, H, F, start, known,
                K: tl.constexpr, CLASSES: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """hidden + W1[:, start : start + CLASSES] x for the class masses of one position."""
    o_k = tl.arange(0, BLOCK_K)
    m_k = o_k < K
    b_prob = tl.load(p_prob + o_k, mask=m_k, other=0.0)  # [BLOCK_K]
    b_id = tl.load(p_id + o_k, mask=m_k, other=-1)  # [BLOCK_K]
    inside = (b_id >= 0) & (b_id < known)
    b_class = tl.load(class_ptr + tl.where(inside, b_id, 0), mask=inside, other=0).to(tl.int32)  # [BLOCK_K]
    o_c = tl.arange(0, BLOCK_C)
    m_c = o_c < CLASSES
    # a product, not a choice: NaN must come through
    member = (b_class[None, :] == o_c[:, None]).to(tl.float32)
    mass = tl.sum(member * b_prob[None, :], 1)
    b_mean = tl.load(mean_ptr + start + o_c, mask=m_c, other=0.0)  # [BLOCK_C]
    b_scale = tl.load(scale_ptr + start + o_c, mask=m_c, other=1.0)  # [BLOCK_C]
    x = tl.where(m_c, (tl.log(at_least(mass, MASS_LOW)) - b_mean) / b_scale, 0.0)
    p_w = w1_ptr + o_h[:, None] * F + start + o_c[None, :]
    b_w = tl.load(p_w, mask=(o_h < H)[:, None] & m_c[None, :], other=0.0)  # [BLOCK_H, BLOCK_C]
    return hidden + tl.sum(b_w * x[None, :], 1)


@triton.jit
def _evaluated(
    p_x0, p_x1, p_x2, p_x3, p_i0, p_i1, p_i2, p_i3, class_ptr, mean_ptr, scale_ptr, w1_ptr, b1_ptr, w2_ptr, b2_ptr,
    w3_ptr, b3_ptr, H, F, known,
    K: tl.constexpr, POSITIONS: tl.constexpr, TRANSFORM: tl.constexpr, CLASSES: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_F: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Capacity of one sequence."""
    o_h = tl.arange(0, BLOCK_H)
    start: tl.constexpr = POSITIONS * K
    hidden = first_layer(
        p_x0, p_x1, p_x2, p_x3, mean_ptr, scale_ptr, w1_ptr, b1_ptr, o_h, H, F, K, POSITIONS, TRANSFORM, BLOCK_F
    )
    if CLASSES > 0:
        hidden = _add_masses(hidden, p_x0, p_i0, class_ptr, mean_ptr, scale_ptr, w1_ptr, o_h, H, F, start, known, K,
                             CLASSES, BLOCK_K, BLOCK_C)  # fmt: skip
        if POSITIONS > 1:
            hidden = _add_masses(hidden, p_x1, p_i1, class_ptr, mean_ptr, scale_ptr, w1_ptr, o_h, H, F,
                                 start + CLASSES, known, K, CLASSES, BLOCK_K, BLOCK_C)  # fmt: skip
        if POSITIONS > 2:
            hidden = _add_masses(hidden, p_x2, p_i2, class_ptr, mean_ptr, scale_ptr, w1_ptr, o_h, H, F,
                                 start + 2 * CLASSES, known, K, CLASSES, BLOCK_K, BLOCK_C)  # fmt: skip
        if POSITIONS > 3:
            hidden = _add_masses(hidden, p_x3, p_i3, class_ptr, mean_ptr, scale_ptr, w1_ptr, o_h, H, F,
                                 start + 3 * CLASSES, known, K, CLASSES, BLOCK_K, BLOCK_C)  # fmt: skip
    return later_layers(hidden, w2_ptr, b2_ptr, w3_ptr, b3_ptr, o_h, H, BLOCK_J)


@triton.jit
def _fetch_network(i_b, w1_ptr, w2_ptr, H, F):
    """Once for all sequences: since the last step every weight of the model has passed through the cache."""
    if i_b == 0:
        prefetch_floats(w1_ptr, H * F, LINES)
        prefetch_floats(w2_ptr, H * H, LINES)


@triton.jit
def _ends(ends_ptr, token, E, BLOCK_E: tl.constexpr):
    """Whether the token is among E ends; BLOCK_E 0: there are none."""
    found = token != token
    if BLOCK_E > 0:
        o_e = tl.arange(0, BLOCK_E)
        b_end = tl.load(ends_ptr + o_e, mask=o_e < E, other=-3)  # [BLOCK_E]
        found = tl.sum((b_end == token).to(tl.int32), 0) > 0
    return found


@triton.jit
def _decision_kernel(
    x0_ptr, x1_ptr, x2_ptr, x3_ptr, i0_ptr, i1_ptr, i2_ptr, i3_ptr, class_ptr,
    mean_ptr, scale_ptr, w1_ptr, b1_ptr, w2_ptr, b2_ptr, w3_ptr, b3_ptr,
    candidates_ptr, needs_ptr, counts_ptr, pending_ptr, pending_strength_ptr, pending_capacity_ptr, factor_ptr,
    given_ptr, lse_ptr, padded_ptr, tally_ptr, budgets_ptr, ends_ptr, active_ptr, ring_ptr, floats_ptr, cursor_ptr,
    carried_ptr, tokens_ptr, choice_ptr, chosen_ptr, shown_ptr, strength_ptr, capacity_ptr, emitted_ptr, moved_ptr,
    broken_ptr,
    stride_x0, stride_x1, stride_x2, stride_x3, stride_cb, stride_nb, stride_pb, H, F, known, M, E, theta, beta, full,
    slots, window, room, size, columns,
    K: tl.constexpr, POSITIONS: tl.constexpr, TRANSFORM: tl.constexpr, CLASSES: tl.constexpr, RULE: tl.constexpr,
    HAS_COUNTS: tl.constexpr, HAS_GIVEN: tl.constexpr, HAS_FLOATS: tl.constexpr, HAS_CARRIED: tl.constexpr,
    USE_PDL: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """One sequence. Without POSITIONS its strength is beta * factor, or 0 where what is given is not above theta."""
    i_b = tl.program_id(0).to(tl.int64)
    if USE_PDL and POSITIONS > 0:
        _fetch_network(i_b, w1_ptr, w2_ptr, H, F)
    pdl_sync(USE_PDL)
    o_m = tl.arange(0, BLOCK_M)
    p_candidate = candidates_ptr + i_b * stride_cb
    waiting = tl.load(pending_ptr + i_b) >= 0
    count = tl.full((), 1, tl.int64)
    if HAS_COUNTS:
        count = tl.load(counts_ptr + i_b)
    capacity = tl.full((), float("nan"), tl.float32)
    strength = tl.full((), 0.0, tl.float32)
    if POSITIONS > 0:
        o_0, o_1, o_2, o_3 = i_b * stride_x0, i_b * stride_x1, i_b * stride_x2, i_b * stride_x3
        capacity = _evaluated(
            x0_ptr + o_0, x1_ptr + o_1, x2_ptr + o_2, x3_ptr + o_3, i0_ptr + o_0, i1_ptr + o_1, i2_ptr + o_2,
            i3_ptr + o_3, class_ptr, mean_ptr, scale_ptr, w1_ptr, b1_ptr, w2_ptr, b2_ptr, w3_ptr, b3_ptr, H, F, known,
            K, POSITIONS, TRANSFORM, CLASSES, BLOCK_H, BLOCK_F, BLOCK_J, BLOCK_K, BLOCK_C,
        )  # fmt: skip
        strength = strength_of(capacity, theta, beta) * tl.load(factor_ptr + i_b)
        strength = tl.where(waiting, tl.load(pending_strength_ptr + i_b), strength)
        capacity = tl.where(waiting, tl.load(pending_capacity_ptr + i_b), capacity)
    else:
        strength = beta * tl.load(factor_ptr + i_b)
        if HAS_GIVEN:
            strength = tl.where(tl.load(given_ptr + i_b) > theta, strength, 0.0)
    choice = choose(p_candidate, needs_ptr + i_b * stride_nb, count, strength, full, M, RULE, BLOCK_M)

    token = tl.load(p_candidate + choice)
    b_candidate = tl.load(p_candidate + o_m, mask=o_m < M, other=0)  # [BLOCK_M]
    active = tl.load(active_ptr + i_b) != 0
    finite = tl.abs(tl.load(lse_ptr + i_b)) < float("inf")
    reach = slots
    if HAS_CARRIED:
        reach = tl.load(carried_ptr + i_b)
    overflow = (choice >= reach) & active & (waiting == 0)
    emitted = active & (overflow == 0)
    tally = tl.load(tally_ptr + i_b)
    after = tally + emitted.to(tl.int64)
    ended = _ends(ends_ptr + i_b * E, token, E, BLOCK_E) | (after >= tl.load(budgets_ptr + i_b))
    stays = active & ((emitted & ended) == 0)
    place = tl.load(cursor_ptr) & 0xFFFFFFFF
    tl.debug_barrier()  # what is written now, slower threads of this program still had to read

    tl.store(pending_ptr + i_b, tl.where(overflow, token, -1))
    tl.store(pending_strength_ptr + i_b, strength)
    tl.store(pending_capacity_ptr + i_b, capacity)
    tl.store(padded_ptr + i_b * stride_pb + tl.minimum(tally + window, room - 1), token, mask=emitted)
    tl.store(tally_ptr + i_b, after)
    tl.store(active_ptr + i_b, stays)
    tl.store(tokens_ptr + i_b, token)
    tl.store(choice_ptr + i_b, choice)
    tl.store(chosen_ptr + i_b, tl.where(emitted & (waiting == 0) & (POSITIONS > 0), choice, 0))
    tl.store(shown_ptr + i_b, count)
    tl.store(strength_ptr + i_b, strength)
    tl.store(capacity_ptr + i_b, capacity)
    tl.store(emitted_ptr + i_b, emitted)
    tl.store(moved_ptr + i_b, emitted & stays)
    tl.store(broken_ptr + i_b, active & (finite == 0))

    row = place * tl.num_programs(0) + i_b
    p_ring = ring_ptr + row * columns
    said = tl.where(emitted, token, NO_TOKEN)
    tl.store(p_ring, tl.where(active & (finite == 0), NOT_FINITE, said))
    if HAS_FLOATS:
        tl.store(p_ring + 1, choice)
        tl.store(p_ring + 2, count)
        tl.store(p_ring + 3 + o_m, b_candidate, mask=o_m < M)
        tl.store(floats_ptr + 2 * row, strength)
        tl.store(floats_ptr + 2 * row + 1, capacity)
    arrived = tl.atomic_add(cursor_ptr, 1 << 32) >> 32
    if arrived == tl.num_programs(0) - 1:
        tl.store(cursor_ptr, (place + 1) % size)


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


def _check_texts(given: dict[str, torch.Tensor | None], batch: int, rungs: int, like: torch.Tensor) -> None:
    """Everything [B], the texts and the ring."""
    for name, tensor in given.items():
        if tensor is None:
            continue
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


def decision_step(
    probs: list[torch.Tensor],
    ids: list[torch.Tensor],
    weights: list[torch.Tensor],
    table: torch.Tensor | None,
    candidates: torch.Tensor,
    needs: torch.Tensor,
    counts: torch.Tensor | None,
    pending: torch.Tensor,
    pending_strength: torch.Tensor,
    pending_capacity: torch.Tensor,
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
    of_rows = {"counts": counts, "pending": pending, "pending_strength": pending_strength,
               "pending_capacity": pending_capacity, "factor": factor, "given": given, "logsumexp": logsumexp,
               "tally": tally, "budgets": budgets, "active": active, "carried": carried}  # fmt: skip
    _check_texts(of_rows, batch, rungs, candidates)
    _check_ring(padded, ends, ring, floats, cursor, window, batch, rungs)
    if weights:
        _check_window(probs, ids, weights, table, k, transform, classes, batch, candidates)
    whole = [torch.empty_like(tally) for _ in range(4)]
    real = [torch.empty_like(factor) for _ in range(2)]
    said = [torch.empty_like(active) for _ in range(3)]
    names = ("tokens", "choice", "chosen", "shown", "strength", "capacity", "emitted", "moved", "broken")
    outputs = dict(zip(names, [*whole, *real, *said], strict=True))
    given_tensors = {name: tally if tensor is None else tensor for name, tensor in of_rows.items()}
    given_tensors |= {"candidates": candidates, "needs": needs, "padded": padded, "ends": ends, "ring": ring,
                      "floats": factor if floats is None else floats, "cursor": cursor, **outputs}  # fmt: skip
    given_tensors["lse"] = given_tensors.pop("logsumexp")
    launch(
        _decision_kernel,
        (batch,),
        {
            **_network(probs, ids, weights, table, k, classes, factor),
            **{f"{name}_ptr": tensor for name, tensor in given_tensors.items()},
            "stride_cb": candidates.stride(0), "stride_nb": needs.stride(0), "stride_pb": padded.stride(0),
            "M": rungs, "E": ends.shape[1], "theta": theta, "beta": beta, "full": full, "slots": slots,
            "window": window, "room": padded.shape[1], "size": ring.shape[0], "columns": ring.shape[2],
            "TRANSFORM": transform, "RULE": rule, "HAS_COUNTS": counts is not None, "HAS_GIVEN": given is not None,
            "HAS_FLOATS": floats is not None, "HAS_CARRIED": carried is not None,
            "USE_PDL": uses_pdl(candidates),
            "BLOCK_M": triton.next_power_of_2(rungs),
            "BLOCK_E": triton.next_power_of_2(ends.shape[1]) if ends.shape[1] else 0,
        },
        num_warps=NUM_WARPS if weights else 1,
        maxnreg=128,  # the assembler would rather spill than have fewer programs on a multiprocessor, of which few run
        enable_fp_fusion=False,
    )  # fmt: skip
    return tuple(outputs.values())


def _network(probs, ids, weights, table, k: int, classes: int, stand_in: torch.Tensor) -> dict[str, object]:
    """The kernel's arguments about window and network; without one, what it does not touch."""
    positions = len(probs) if weights else 0
    windows = [(probs[min(i, positions - 1)], ids[min(i, positions - 1)]) if positions else (stand_in, stand_in)
               for i in range(MAX_POSITIONS)]  # fmt: skip
    names = ("mean", "scale", "w1", "b1", "w2", "b2", "w3", "b3")
    found = classes if positions and table is not None else 0
    hidden = weights[2].shape[0] if positions else 1
    return {
        **{f"x{i}_ptr": p for i, (p, _) in enumerate(windows)},
        **{f"i{i}_ptr": at for i, (_, at) in enumerate(windows)},
        **{f"stride_x{i}": p.stride(0) for i, (p, _) in enumerate(windows)},
        **{f"{name}_ptr": tensor for name, tensor in zip(names, weights if positions else [stand_in] * 8, strict=True)},
        "class_ptr": table if found else stand_in, "known": table.numel() if found else 0, "H": hidden,
        "F": positions * (k + found), "K": k, "POSITIONS": positions, "CLASSES": found,
        **network_blocks(hidden, k), "BLOCK_K": triton.next_power_of_2(k),
        "BLOCK_C": triton.next_power_of_2(max(found, 1)),
    }  # fmt: skip
