"""The likeliest green token of whole rows: the full scan for positions whose record holds no green token.

    token = argmax { l_t : (word_t >> 8) < floor(gamma 2^24) },   ties to the smaller id       (green_argmax_ref)

A Philox call gives the words of four neighbouring tokens. Kirchenbauer et al. 2023, Algorithm 2; KGW's self-hash needs
one such call for each window token and then two calls for each token.
"""

import torch
import triton
import triton.language as tl

from caw.triton_kernels.launching import FLOATS, cdiv, check, check_tensor, launch
from caw.triton_kernels.prf import LIST_BITS, absorb_context, absorb_pair, check_prf, key_words, quad_words, token_word
from caw.triton_kernels.topk_softmax import ordered_key

BLOCK_QUADS = 512  # 2048 tokens a program


@triton.jit
def _best_green(best, word, score_ptr, stride_sv, o_t, vocab_size, threshold):
    """Running maximum of (key << 31) + (2^31 - 1 - id) over green tokens with a score above -inf."""
    m_t = o_t < vocab_size
    score = tl.load(score_ptr + o_t.to(tl.int64) * stride_sv, mask=m_t, other=float("-inf")).to(tl.float32)
    order = (ordered_key(score).to(tl.int64) << 31) + (0x7FFFFFFF - o_t).to(tl.int64)
    eligible = m_t & (score > float("-inf")) & ((word >> 8).to(tl.int32) < threshold)
    return tl.maximum(best, tl.where(eligible, order, -1))


@triton.jit
def _selfhash_word(seed, o_t, lo, hi):
    """PRF(key, (seed, token), token)."""
    token = o_t.to(tl.uint32)
    s0, s1, s2, s3 = absorb_pair(seed, token, lo, hi)
    return token_word(token, s0, s1, s2, s3, lo, hi)


@triton.jit
def best_of_quads(p_score, p_context, lo, hi, i_q, stride_sv, vocab_size, threshold,
                  W: tl.constexpr, SELFHASH: tl.constexpr, BLOCK_Q: tl.constexpr):  # fmt: skip
    """The greatest order of a green token among 4 * BLOCK_Q tokens of one row, -1 for none."""
    best = tl.full([BLOCK_Q], -1, tl.int64)
    o_q = i_q * BLOCK_Q + tl.arange(0, BLOCK_Q)
    quad = o_q.to(tl.uint32)
    if SELFHASH:
        s0, s1, s2, s3 = absorb_context(p_context, lo, hi, 1)
        w0, w1, w2, w3 = quad_words(quad, s0, s1, s2, s3, lo, hi)
        for i in tl.static_range(1, W):
            s0, s1, s2, s3 = absorb_context(p_context + i, lo, hi, 1)
            x0, x1, x2, x3 = quad_words(quad, s0, s1, s2, s3, lo, hi)
            w0, w1, w2, w3 = tl.minimum(w0, x0), tl.minimum(w1, x1), tl.minimum(w2, x2), tl.minimum(w3, x3)
        w0 = _selfhash_word(w0, 4 * o_q, lo, hi)
        w1 = _selfhash_word(w1, 4 * o_q + 1, lo, hi)
        w2 = _selfhash_word(w2, 4 * o_q + 2, lo, hi)
        w3 = _selfhash_word(w3, 4 * o_q + 3, lo, hi)
    else:
        s0, s1, s2, s3 = absorb_context(p_context, lo, hi, W)
        w0, w1, w2, w3 = quad_words(quad, s0, s1, s2, s3, lo, hi)
    best = _best_green(best, w0, p_score, stride_sv, 4 * o_q, vocab_size, threshold)
    best = _best_green(best, w1, p_score, stride_sv, 4 * o_q + 1, vocab_size, threshold)
    best = _best_green(best, w2, p_score, stride_sv, 4 * o_q + 2, vocab_size, threshold)
    best = _best_green(best, w3, p_score, stride_sv, 4 * o_q + 3, vocab_size, threshold)
    return tl.max(best, 0)


@triton.jit
def _scan_kernel(
    scores_ptr, context_ptr, key_ptr, wanted_ptr, best_ptr, stride_sb, stride_sv, stride_cb, vocab_size, threshold,
    W: tl.constexpr, SELFHASH: tl.constexpr, HAS_WANTED: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """The best green token among 4 * BLOCK_Q tokens of one row; rows that are not wanted cost one load."""
    i_b = tl.program_id(0).to(tl.int64)
    i_q = tl.program_id(1)
    best = tl.full((), -1, tl.int64)
    wanted = i_b >= 0
    if HAS_WANTED:
        wanted = tl.load(wanted_ptr + i_b) != 0
    if wanted:
        lo, hi = key_words(key_ptr + i_b)
        p_score = scores_ptr + i_b * stride_sb
        best = best_of_quads(
            p_score, context_ptr + i_b * stride_cb, lo, hi, i_q, stride_sv, vocab_size, threshold, W, SELFHASH, BLOCK_Q
        )
    tl.store(best_ptr + i_b * tl.num_programs(1) + i_q, best)


@triton.jit
def best_token(best):
    """The token of an order that `best_of_quads` made, -1 for none."""
    return tl.where(best >= 0, 0x7FFFFFFF - (best & 0x7FFFFFFF), -1)


@triton.jit
def _reduce_kernel(
    scores_ptr, best_ptr, token_ptr, score_ptr, stride_sb, stride_sv, parts, BLOCK_PARTS: tl.constexpr
):  # fmt: skip
    """One row: the best of its parts, and its score read back."""
    i_b = tl.program_id(0).to(tl.int64)
    o_p = tl.arange(0, BLOCK_PARTS)
    best = tl.max(tl.load(best_ptr + i_b * parts + o_p, mask=o_p < parts, other=-1), 0)
    token = best_token(best)
    score = tl.load(scores_ptr + i_b * stride_sb + token * stride_sv, mask=best >= 0, other=float("-inf"))
    tl.store(token_ptr + i_b, token)
    tl.store(score_ptr + i_b, score.to(tl.float32))


def green_argmax(
    scores: torch.Tensor,
    context: torch.Tensor,
    key: torch.Tensor,
    threshold: int,
    selfhash: bool,
    wanted: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Likeliest green token of each wanted row; arguments and result as in `green_argmax_ref`, bit for bit.

    scores of any strides. Deterministic: integer maxima. Raises TypeError or ValueError naming the argument, before any
    launch.
    """
    check_tensor("scores", scores, FLOATS, (None, None))
    batch, vocab_size = scores.shape
    check(vocab_size >= 1, "scores must have at least 1 column", vocab_size, "pass the logits")
    check_prf(key, context, batch, scores)
    width = context.shape[1]
    check(not selfhash or width >= 1, "context must hold at least 1 token for selfhash", width, "pass the window")
    check(0 <= threshold <= 1 << LIST_BITS, f"threshold must be in [0, 2**{LIST_BITS}]", threshold, "use gamma * 2**24")
    if wanted is not None:
        check_tensor("wanted", wanted, (torch.bool,), (batch,), scores)
        check(wanted.is_contiguous(), "wanted must be contiguous", f"stride {wanted.stride()}", "call .contiguous()")
    parts = cdiv(vocab_size, 4 * BLOCK_QUADS)
    best = scores.new_empty((batch, parts), dtype=torch.int64)
    token, score = best.new_empty((batch,)), scores.new_empty((batch,), dtype=torch.float32)
    shared = {"scores_ptr": scores, "best_ptr": best, "stride_sb": scores.stride(0), "stride_sv": scores.stride(1)}
    launch(
        _scan_kernel,
        (batch, parts),
        {
            **shared, "context_ptr": context, "key_ptr": key, "wanted_ptr": best if wanted is None else wanted,
            "stride_cb": context.stride(0), "vocab_size": vocab_size, "threshold": threshold,
            "W": width, "SELFHASH": selfhash, "HAS_WANTED": wanted is not None, "BLOCK_Q": BLOCK_QUADS,
        },
        num_warps=4,
    )  # fmt: skip
    arguments = {**shared, "token_ptr": token, "score_ptr": score, "parts": parts}
    launch(_reduce_kernel, (batch,), {**arguments, "BLOCK_PARTS": triton.next_power_of_2(parts)}, num_warps=4)
    return token, score
