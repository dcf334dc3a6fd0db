"""Who wins a keyed race over whole rows of logits, in float64 from the integer PRF word.

token = argmax { l_t / T - log(-log F_t) },   F_t = uniform(PRF(key, context, t))       (race_winner_ref; Aaronson 2022)

A Philox call gives the words of four neighbouring tokens; parts of a row without a token that races make none. Nothing
is read back, so that a CUDA graph can hold it.
"""

import torch
import triton
import triton.language as tl

from caw.triton_kernels.launching import cdiv, check, check_tensor, launch
from caw.triton_kernels.prf import absorb_context, check_prf, gumbel, key_words, quad_words

BLOCK_QUADS = 256  # 1024 tokens a program
BEHIND = tl.constexpr(1 << 31)  # beyond every token id


@triton.jit
def _better(race_a, token_a, race_b, token_b):
    """Elementwise the greater race value, of equal ones the smaller id."""
    other = (race_b > race_a) | ((race_b == race_a) & (token_b < token_a))
    return tl.where(other, race_b, race_a), tl.where(other, token_b, token_a)


@triton.jit
def _race_value(logit, word, token, temperature):
    """(race value, token); a logit of -inf or NaN does not race."""
    races = logit > float("-inf")
    race = logit.to(tl.float64) / temperature + gumbel(word)
    return tl.where(races, race, float("-inf")), tl.where(races, token, BEHIND)


@triton.jit
def _best_of(race, token):
    """The greatest value and its smallest token, scalars."""
    best = tl.max(race, 0)
    return best, tl.min(tl.where(race == best, token, BEHIND), 0)


@triton.jit
def _part_kernel(logits_ptr, context_ptr, key_ptr, race_ptr, token_ptr, stride_lb, stride_lv, stride_cb, vocab_size,
                 temperature_ptr, W: tl.constexpr, BLOCK_Q: tl.constexpr):  # fmt: skip
    """The winner among 4 * BLOCK_Q tokens of one row."""
    i_b = tl.program_id(0).to(tl.int64)
    i_q = tl.program_id(1)
    o_q = i_q * BLOCK_Q + tl.arange(0, BLOCK_Q)
    o_t = 4 * o_q.to(tl.int64)
    p_logit = logits_ptr + i_b * stride_lb + o_t * stride_lv
    low = float("-inf")
    l0 = tl.load(p_logit, mask=o_t < vocab_size, other=low)  # [BLOCK_Q]
    l1 = tl.load(p_logit + stride_lv, mask=o_t + 1 < vocab_size, other=low)
    l2 = tl.load(p_logit + 2 * stride_lv, mask=o_t + 2 < vocab_size, other=low)
    l3 = tl.load(p_logit + 3 * stride_lv, mask=o_t + 3 < vocab_size, other=low)
    races = (l0 > low) | (l1 > low) | (l2 > low) | (l3 > low)
    best = tl.full((), low, tl.float64)
    token = tl.full((), BEHIND, tl.int64)
    if tl.max(races.to(tl.int32), 0) > 0:
        temperature = tl.load(temperature_ptr)
        lo, hi = key_words(key_ptr + i_b)
        s0, s1, s2, s3 = absorb_context(context_ptr + i_b * stride_cb, lo, hi, W)
        w0, w1, w2, w3 = quad_words(o_q.to(tl.uint32), s0, s1, s2, s3, lo, hi)
        r0, t0 = _race_value(l0, w0, o_t, temperature)
        r1, t1 = _race_value(l1, w1, o_t + 1, temperature)
        r2, t2 = _race_value(l2, w2, o_t + 2, temperature)
        r3, t3 = _race_value(l3, w3, o_t + 3, temperature)
        r0, t0 = _better(r0, t0, r1, t1)
        r2, t2 = _better(r2, t2, r3, t3)
        r0, t0 = _better(r0, t0, r2, t2)
        best, token = _best_of(r0, t0)
    place = i_b * tl.num_programs(1) + i_q
    tl.store(race_ptr + place, best)
    tl.store(token_ptr + place, token)


@triton.jit
def _row_kernel(race_ptr, token_ptr, winner_ptr, parts, BLOCK_PARTS: tl.constexpr):
    """The winner among the parts of one row; 0 where nobody raced."""
    i_b = tl.program_id(0).to(tl.int64)
    o_p = tl.arange(0, BLOCK_PARTS)
    race = tl.load(race_ptr + i_b * parts + o_p, mask=o_p < parts, other=float("-inf"))  # [BLOCK_PARTS]
    token = tl.load(token_ptr + i_b * parts + o_p, mask=o_p < parts, other=BEHIND)  # [BLOCK_PARTS]
    _, winner = _best_of(race, token)
    tl.store(winner_ptr + i_b, tl.where(winner == BEHIND, 0, winner))


def race_winner(
    logits: torch.Tensor, context: torch.Tensor, key: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Winner int64 [B] of each row; arguments as in `race_winner_ref`, logits of any strides, W <= 64.

    The PRF words are exact; the two logarithms may differ from another backend's by the row `margin/race`.
    Raises TypeError or ValueError naming the argument, before any launch.
    """
    check_tensor("logits", logits, (torch.float32,), (None, None))
    batch, vocab_size = logits.shape
    check(1 <= vocab_size < 1 << 31, "logits must have 1 to 2**31 - 1 columns", vocab_size, "pass the logits")
    check_prf(key, context, batch, logits)
    check(0 < temperature < float("inf"), "temperature must be above 0 and finite", temperature, "use 1.0")
    parts = cdiv(vocab_size, 4 * BLOCK_QUADS)
    race = logits.new_empty((batch, parts), dtype=torch.float64)
    token, winner = context.new_empty((batch, parts)), context.new_empty((batch,))
    launch(
        _part_kernel,
        (batch, parts),
        {
            "logits_ptr": logits, "context_ptr": context, "key_ptr": key, "race_ptr": race, "token_ptr": token,
            "stride_lb": logits.stride(0), "stride_lv": logits.stride(1), "stride_cb": context.stride(0),
            "vocab_size": vocab_size,
            # a number would reach the kernel as float32
            "temperature_ptr": torch.full((1,), temperature, dtype=torch.float64, device=logits.device),
            "W": context.shape[1], "BLOCK_Q": BLOCK_QUADS,
        },
        num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    rows = {"race_ptr": race, "token_ptr": token, "winner_ptr": winner, "parts": parts}
    launch(_row_kernel, (batch,), {**rows, "BLOCK_PARTS": triton.next_power_of_2(parts)}, num_warps=4)
    return winner
