"""The evaluator and everything after it in one launch: records -> capacity -> strength -> chosen candidate.

    capacity = sigmoid(W3 relu(W2 relu(W1 (x - mean) / scale + b1) + b2) + b3)          (paper, equation 1)
    strength = factor beta max(0, (theta - capacity) / theta)                           (paper, delta' and K')
    choice   = the rung of the ladder that the strength reaches                         (select_candidate_ref)

One program a sequence, everything in float32. Fused multiply-add is off: the reweighting rule compares
fl32(l + fl32(strength * delta)) with a logit, exact ties included, and one rounding less would break them.
"""

from collections import namedtuple

import torch
import triton
import triton.language as tl

from caw.capacity import CAPACITY_FLOOR, PROBABILITY_FLOOR
from caw.op_indices import RULES, TRANSFORMS
from caw.triton_kernels.launching import check, check_tensor, launch

MAX_HIDDEN = 512
MAX_POSITIONS = 4
MAX_EXTRA = 64
MAX_RUNGS = 128
NUM_WARPS = 16
RAW, LOG, GAP = (tl.constexpr(TRANSFORMS.index(name)) for name in ("raw", "log", "gap"))
REWEIGHT, TOP_K = (tl.constexpr(RULES.index(name)) for name in ("reweight", "top_k"))
PROB_FLOOR, LOW, HIGH = (tl.constexpr(x) for x in (PROBABILITY_FLOOR, CAPACITY_FLOOR, 1 - CAPACITY_FLOOR))


# Arguments that kernels are given together. network: its weights, width and inputs, and the class of each token id
Network = namedtuple("Network", "mean_ptr scale_ptr w1_ptr b1_ptr w2_ptr b2_ptr w3_ptr b3_ptr H F class_ptr known")
Ladder = namedtuple("Ladder", "candidates_ptr needs_ptr counts_ptr stride_cb stride_nb M")
Pending = namedtuple("Pending", "token_ptr strength_ptr capacity_ptr")


@triton.jit
def choose(candidates_ptr, needs_ptr, count, strength, full, M, RULE: tl.constexpr, BLOCK_M: tl.constexpr):
    """How many rungs after the first the strength reaches."""
    o_m = tl.arange(0, BLOCK_M)
    m_m = o_m < M
    b_need = tl.load(needs_ptr + o_m, mask=m_m, other=0.0)  # [BLOCK_M]
    if RULE == REWEIGHT:
        b_id = tl.load(candidates_ptr + o_m, mask=m_m, other=0)  # [BLOCK_M]
        boosted = b_need + strength * full
        first = tl.load(needs_ptr)
        reached = (boosted > first) | ((boosted == first) & (b_id < tl.load(candidates_ptr)))
    elif RULE == TOP_K:
        reached = 2 * strength * full > 2 * b_need - 1
    else:
        reached = strength > b_need
    reached = reached & m_m & (o_m >= 1) & (o_m < count)
    return tl.sum(reached.to(tl.int64), 0)


@triton.jit
def at_least(x, low):
    """max(x, low) that keeps NaN, as the reference does: `tl.maximum` would make it `low`, which is full strength."""
    return tl.maximum(x, low, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _transform(probs_ptr, o_k, m_k, TRANSFORM: tl.constexpr):
    """Features of one position at columns o_k."""
    x = tl.load(probs_ptr + o_k, mask=m_k, other=1.0)
    if TRANSFORM != RAW:
        x = tl.log(at_least(x, PROB_FLOOR))
    if TRANSFORM == GAP:
        # a NaN is in x already; keeping it in the first one too cost registers that one layout does not have
        x = tl.where(o_k == 0, x, tl.log(tl.maximum(tl.load(probs_ptr), PROB_FLOOR)) - x)
    return x


@triton.jit
def _layer1(hidden, p_x, network, o_h, START: tl.constexpr, K: tl.constexpr, TRANSFORM: tl.constexpr,
            BLOCK_F: tl.constexpr):  # fmt: skip
    """hidden + W1[:, START : START + K] x for one position's K features."""
    for f in range(0, K, BLOCK_F):  # not unrolled: wide networks would hold every block's weights at once
        o_k = f + tl.arange(0, BLOCK_F)
        m_k = o_k < K
        b_mean = tl.load(network.mean_ptr + START + o_k, mask=m_k, other=0.0)  # [BLOCK_F]
        b_scale = tl.load(network.scale_ptr + START + o_k, mask=m_k, other=1.0)  # [BLOCK_F]
        x = tl.where(m_k, (_transform(p_x, o_k, m_k, TRANSFORM) - b_mean) / b_scale, 0.0)
        p_w = network.w1_ptr + o_h[:, None] * network.F + START + o_k[None, :]
        b_w = tl.load(p_w, mask=(o_h < network.H)[:, None] & m_k[None, :], other=0.0)  # [BLOCK_H, BLOCK_F]
        hidden += tl.sum(b_w * x[None, :], 1)
    return hidden


@triton.jit
def first_layer(x_ptrs, x_strides, i_b, network, o_h, K: tl.constexpr, TRANSFORM: tl.constexpr, BLOCK_F: tl.constexpr):
    """Sums of the first layer, from the probabilities of each window position alone: float32 [BLOCK_H]."""
    hidden = tl.load(network.b1_ptr + o_h, mask=o_h < network.H, other=0.0)  # [BLOCK_H]
    for i in tl.static_range(len(x_ptrs)):
        hidden = _layer1(hidden, x_ptrs[i] + i_b * x_strides[i], network, o_h, i * K, K, TRANSFORM, BLOCK_F)
    return hidden


@triton.jit
def later_layers(hidden, network, o_h, BLOCK_J: tl.constexpr):
    """Capacity of one sequence from the sums of its first layer."""
    hidden = at_least(hidden, 0.0)
    logit = tl.load(network.b3_ptr)
    for j in range(0, network.H, BLOCK_J):
        o_j = j + tl.arange(0, BLOCK_J)
        m_j = o_j < network.H
        p_w = network.w2_ptr + o_j[:, None] * network.H + o_h[None, :]
        b_w = tl.load(p_w, mask=m_j[:, None] & (o_h < network.H)[None, :], other=0.0)  # [BLOCK_J, BLOCK_H]
        y = tl.sum(b_w * hidden[None, :], 1) + tl.load(network.b2_ptr + o_j, mask=m_j, other=0.0)
        logit += tl.sum(at_least(y, 0.0) * tl.load(network.w3_ptr + o_j, mask=m_j, other=0.0), 0)
    return 1.0 / (1.0 + tl.exp(-logit))


@triton.jit
def strength_of(capacity, theta, beta):
    """beta max(0, (theta - capacity) / theta), 0 where theta is 0."""
    clamped = at_least(capacity, LOW)
    clamped = tl.minimum(clamped, HIGH, propagate_nan=tl.PropagateNan.ALL)
    safe = tl.where(theta > 0, theta, 1.0)
    strength = beta * at_least(tl.div_rn(theta - clamped, safe), 0.0)
    return tl.where(theta > 0, strength, 0.0)


@triton.jit
def _evaluator_kernel(
    x_ptrs, x_strides, extra_ptr, stride_extra, network, ladder, pending, factor_ptr, capacity_ptr, strength_ptr,
    choice_ptr, theta, beta, full,
    K: tl.constexpr, EXTRA: tl.constexpr, TRANSFORM: tl.constexpr, RULE: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """One sequence. Without a ladder only the capacity is written."""
    i_b = tl.program_id(0).to(tl.int64)
    o_h = tl.arange(0, BLOCK_H)
    hidden = first_layer(x_ptrs, x_strides, i_b, network, o_h, K, TRANSFORM, BLOCK_F)
    if EXTRA > 0:
        p_x = extra_ptr + i_b * stride_extra
        hidden = _layer1(hidden, p_x, network, o_h, len(x_ptrs) * K, EXTRA, RAW, BLOCK_F)
    capacity = later_layers(hidden, network, o_h, BLOCK_J)
    if ladder is not None:
        strength = strength_of(capacity, theta, beta) * tl.load(factor_ptr + i_b)
        waiting = tl.load(pending.token_ptr + i_b) >= 0
        strength = tl.where(waiting, tl.load(pending.strength_ptr + i_b), strength)
        capacity = tl.where(waiting, tl.load(pending.capacity_ptr + i_b), capacity)
        count = tl.load(ladder.counts_ptr + i_b)
        p_candidate, p_need = ladder.candidates_ptr + i_b * ladder.stride_cb, ladder.needs_ptr + i_b * ladder.stride_nb
        choice = choose(p_candidate, p_need, count, strength, full, ladder.M, RULE, BLOCK_M)
        tl.store(strength_ptr + i_b, strength)
        tl.store(choice_ptr + i_b, choice)
    tl.store(capacity_ptr + i_b, capacity)


@triton.jit
def _select_kernel(
    candidates_ptr, needs_ptr, counts_ptr, strength_ptr, choice_ptr, full, M, RULE: tl.constexpr, BLOCK_M: tl.constexpr
):
    """One sequence's choice for a given strength."""
    i_b = tl.program_id(0).to(tl.int64)
    count, strength = tl.load(counts_ptr + i_b), tl.load(strength_ptr + i_b)
    choice = choose(candidates_ptr + i_b * M, needs_ptr + i_b * M, count, strength, full, M, RULE, BLOCK_M)
    tl.store(choice_ptr + i_b, choice)


def check_contiguous(**tensors: torch.Tensor) -> None:
    for name, tensor in tensors.items():
        check(tensor.is_contiguous(), f"{name} must be contiguous", f"stride {tensor.stride()}", "call .contiguous()")


def check_weights(weights: list[torch.Tensor], inputs: int, like: torch.Tensor) -> None:
    """Raise unless weights are mean, scale, W1, b1, W2, b2, W3, b3 of a network with this many inputs."""
    check(len(weights) == 8, "weights must be 8 tensors", len(weights), "pass Evaluator.weights()")
    check_tensor("weights[2]", weights[2], (torch.float32,), (None, inputs), like)
    h = weights[2].shape[0]
    check(1 <= h <= MAX_HIDDEN, f"weights[2] must have 1 to {MAX_HIDDEN} rows", h, "train a narrower evaluator")
    shapes = ((inputs,), (inputs,), (h, inputs), (h,), (h, h), (h,), (1, h), (1,))
    for i, (tensor, shape) in enumerate(zip(weights, shapes, strict=True)):
        check_tensor(f"weights[{i}]", tensor, (torch.float32,), shape, like)
        check_contiguous(**{f"weights[{i}]": tensor})


def _check_ladder(candidates, needs, counts, batch: int, rule: int, like: torch.Tensor) -> None:
    check_tensor("candidates", candidates, (torch.int64,), (batch, None), like)
    rungs = candidates.shape[1]
    check(1 <= rungs <= MAX_RUNGS, f"candidates must have 1 to {MAX_RUNGS} columns", rungs, "shorten the ladder")
    check_tensor("needs", needs, (torch.float32,), (batch, rungs), like)
    check_tensor("counts", counts, (torch.int64,), (batch,), like)
    check(0 <= rule < len(RULES), f"rule must be in [0, {len(RULES) - 1}]", rule, "use RULES.index")
    check_contiguous(candidates=candidates, needs=needs, counts=counts)


def network_blocks(hidden: int, k: int) -> dict[str, int]:
    """How much of a network `hidden` wide is looked at at once, k inputs a position."""
    block_h = max(triton.next_power_of_2(hidden), 16)
    # weights held at a time: 32 registers a thread at 16 warps; wider networks spill with that many
    tile = 16384 if block_h <= 128 else 8192
    return {"BLOCK_H": block_h, "BLOCK_F": min(triton.next_power_of_2(k), tile // block_h, 128),
            "BLOCK_J": min(block_h, tile // block_h)}  # fmt: skip


def _launch_evaluator(probs, weights, k, transform, outputs, extra=None, ladder=None, pending=None, factor=None,
                      theta=0.0, beta=0.0, rule=0, full=0.0) -> None:  # fmt: skip
    """Start the kernel; outputs: capacity and, with a ladder, strength and choice."""
    columns = 0 if extra is None else extra.shape[1]
    hidden = weights[2].shape[0]
    capacity, strength, choice = outputs if ladder else (*outputs, None, None)
    launch(
        _evaluator_kernel,
        (probs[0].shape[0],),
        {
            "x_ptrs": tuple(probs), "x_strides": tuple(p.stride(0) for p in probs),
            "extra_ptr": extra, "stride_extra": extra.stride(0) if columns else 0, "EXTRA": columns,
            "network": Network(*weights, hidden, len(probs) * k + columns, None, 0),
            "ladder": ladder, "pending": pending, "factor_ptr": factor,
            "capacity_ptr": capacity, "strength_ptr": strength, "choice_ptr": choice,
            "theta": theta, "beta": beta, "full": full, "K": k, "TRANSFORM": transform, "RULE": rule,
            **network_blocks(hidden, k), "BLOCK_M": triton.next_power_of_2(ladder.M if ladder else 1),
        },
        num_warps=NUM_WARPS,
        enable_fp_fusion=False,
    )  # fmt: skip


def evaluator_step(
    probs: list[torch.Tensor],
    weights: list[torch.Tensor],
    candidates: torch.Tensor,
    needs: torch.Tensor,
    counts: torch.Tensor,
    pending: torch.Tensor,
    pending_strength: torch.Tensor,
    pending_capacity: torch.Tensor,
    factor: torch.Tensor,
    k: int,
    transform: int,
    theta: float,
    beta: float,
    rule: int,
    full: float,
    extra: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Capacity float32 [B], strength float32 [B], choice int64 [B]; arguments as in `evaluator_step_ref`.

    Width h <= 512, at most 128 rungs, 1 to 4 window positions. Deterministic. The choice equals the reference's unless
    the strengths lie on either side of a rung (row `margin/decision`).

    Raises:
        TypeError, ValueError: naming the argument, before any launch; a feature layout that does not fit the weights
            is among them.
    """
    known = 1 <= len(probs) <= MAX_POSITIONS
    check(
        known, f"probs must hold 1 to {MAX_POSITIONS} window positions", len(probs), "use a FeatureSpec within (2, 1)"
    )
    check_tensor("probs[0]", probs[0], (torch.float32,), (None, None))
    batch = probs[0].shape[0]
    for i, p in enumerate(probs):
        check_tensor(f"probs[{i}]", p, (torch.float32,), (batch, None), probs[0])
        check(1 <= k <= p.shape[1], f"k must be in [1, {p.shape[1]}], the columns of probs[{i}]", k, "keep more values")
        rows = p.shape[1] == 1 or p.stride(1) == 1
        check(rows, f"probs[{i}] must have contiguous rows", f"stride {p.stride()}", "call .contiguous()")
    last = len(TRANSFORMS) - 1
    check(0 <= transform <= last, f"transform must be in [0, {last}]", transform, "use TRANSFORMS.index")
    if extra is not None:
        check_tensor("extra", extra, (torch.float32,), (batch, None), probs[0])
        check(1 <= extra.shape[1] <= MAX_EXTRA, f"extra must have 1 to {MAX_EXTRA} columns", extra.shape[1], "use None")
        rows = extra.shape[1] == 1 or extra.stride(1) == 1
        check(rows, "extra must have contiguous rows", f"stride {extra.stride()}", "call .contiguous()")
    check_weights(weights, len(probs) * k + (0 if extra is None else extra.shape[1]), probs[0])
    _check_ladder(candidates, needs, counts, batch, rule, probs[0])
    check_tensor("pending", pending, (torch.int64,), (batch,), probs[0])
    check_tensor("pending_strength", pending_strength, (torch.float32,), (batch,), probs[0])
    check_tensor("pending_capacity", pending_capacity, (torch.float32,), (batch,), probs[0])
    check_tensor("factor", factor, (torch.float32,), (batch,), probs[0])
    check_contiguous(
        pending=pending, pending_strength=pending_strength, pending_capacity=pending_capacity, factor=factor
    )
    capacity = pending_capacity.new_empty((batch,))
    outputs = [capacity, torch.empty_like(capacity), torch.empty_like(counts)]
    rungs = candidates.shape[1]
    ladder = Ladder(candidates, needs, counts, rungs, rungs, rungs)
    waiting = Pending(pending, pending_strength, pending_capacity)
    _launch_evaluator(probs, weights, k, transform, outputs, extra, ladder, waiting, factor, theta, beta, rule, full)
    return outputs[0], outputs[1], outputs[2]


def evaluate_capacity(features: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Capacity float32 [B] from features float32 [B, F] (rows contiguous); as `evaluate_capacity_ref`, h <= 512."""
    check_tensor("features", features, (torch.float32,), (None, None))
    batch, inputs = features.shape
    check(inputs >= 1, "features must have at least 1 column", inputs, "pass FeatureSpec.assemble's result")
    rows = inputs == 1 or features.stride(1) == 1
    check(rows, "features must have contiguous rows", f"stride {features.stride()}", "call .contiguous()")
    check_weights(weights, inputs, features)
    capacity = features.new_empty((batch,))
    _launch_evaluator([features], weights, inputs, TRANSFORMS.index("raw"), [capacity])
    return capacity


def select_candidate(
    candidates: torch.Tensor, needs: torch.Tensor, counts: torch.Tensor, strength: torch.Tensor, rule: int, full: float
) -> torch.Tensor:
    """Index of the chosen candidate, int64 [B]; arguments and result as in `select_candidate_ref`, bit for bit."""
    check_tensor("candidates", candidates, (torch.int64,), (None, None))
    batch, rungs = candidates.shape
    _check_ladder(candidates, needs, counts, batch, rule, candidates)
    check_tensor("strength", strength, (torch.float32,), (batch,), candidates)
    check_contiguous(strength=strength)
    choice = torch.empty_like(counts)
    launch(
        _select_kernel,
        (batch,),
        {
            "candidates_ptr": candidates, "needs_ptr": needs, "counts_ptr": counts, "strength_ptr": strength,
            "choice_ptr": choice, "full": full, "M": rungs, "RULE": rule, "BLOCK_M": triton.next_power_of_2(rungs),
        },
        num_warps=1,
        enable_fp_fusion=False,
    )  # fmt: skip
    return choice
