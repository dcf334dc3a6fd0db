"""Bias and penalties of rows of logits (penalise_logits_ref).

    x + b,  then x / r if x >= 0 else x * r  (of the prompt or n > 0),  then (x - f n) - p  (n > 0)

n: how often the row's text has the token; the order is transformers', then vLLM's (`decoding/penalties.py`). Three
launches: one passes over the vocabulary with bias and the prompt's tokens, the others touch the text's tokens alone.
Counts are integers added by atomics, and the place of a text that takes a token's count away does its arithmetic: each
token once, so programs may come in any order. Fused multiply-add is off: a penalty is subtracted from what has been
rounded. Nothing is read back, so that a CUDA graph can hold it.
"""

import torch
import triton
import triton.language as tl

from caw.triton_kernels.launching import cdiv, check, check_tensor, launch

BLOCK_V = 1024  # logits a program
BLOCK_T = 256  # tokens of the text a program; no fewer than its threads


@triton.jit
def _repetition_penalty(b_x, penalty):
    return tl.where(b_x < 0, b_x * penalty, tl.div_rn(b_x, tl.zeros_like(b_x) + penalty))


@triton.jit
def _text_tokens(p_text, stride_tt, o_t, length, vocab_size):
    """Tokens of a text, and which of them there are."""
    token = tl.load(p_text + o_t.to(tl.int64) * stride_tt, mask=o_t < length, other=-1)
    return token, (token >= 0) & (token < vocab_size)


@triton.jit(do_not_specialize=["stride_tb", "length"])
def _bias_kernel(
    logits_ptr, tokens_ptr, wanted_ptr, numbers_ptr, prompts_ptr, bias_ptr, counts_ptr, out_ptr,
    stride_lb, stride_lv, stride_tb, stride_tt, stride_wb, stride_nb, stride_pb, stride_pv, stride_bb, stride_bv,
    vocab_size, length, BIASED: tl.constexpr, REPEATS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A part of a row with its bias and the penalty of the prompt's tokens; counts of the text's tokens become 0."""
    i_b = tl.program_id(0).to(tl.int64)
    i_p = tl.program_id(1)
    o_v = i_p * BLOCK + tl.arange(0, BLOCK)
    m_v = o_v < vocab_size
    b_x = tl.load(logits_ptr + i_b * stride_lb + o_v.to(tl.int64) * stride_lv, mask=m_v, other=0.0)  # [BLOCK]
    if tl.load(wanted_ptr + i_b * stride_wb).to(tl.int32) != 0:
        if BIASED:
            p_bias = bias_ptr + i_b * stride_bb + o_v.to(tl.int64) * stride_bv
            b_x += tl.load(p_bias, mask=m_v, other=0.0)  # [BLOCK]
        if REPEATS:
            p_seen = prompts_ptr + i_b * stride_pb + o_v.to(tl.int64) * stride_pv
            b_seen = tl.load(p_seen, mask=m_v, other=0).to(tl.int32) != 0  # [BLOCK]
            b_x = tl.where(b_seen, _repetition_penalty(b_x, tl.load(numbers_ptr + i_b * stride_nb)), b_x)
        for start in range(i_p * BLOCK, length, tl.num_programs(1) * BLOCK):
            o_t = start + tl.arange(0, BLOCK)
            token, there = _text_tokens(tokens_ptr + i_b * stride_tb, stride_tt, o_t, length, vocab_size)  # [BLOCK]
            tl.store(counts_ptr + i_b * vocab_size + token, tl.full([BLOCK], 0, tl.int32), mask=there)
    tl.store(out_ptr + i_b * vocab_size + o_v, b_x, mask=m_v)


@triton.jit(do_not_specialize=["stride_tb", "length"])
def _count_kernel(
    tokens_ptr, wanted_ptr, counts_ptr, stride_tb, stride_tt, stride_wb, vocab_size, length, BLOCK: tl.constexpr,
):  # fmt: skip
    """How often a part of a text has each token."""
    i_b = tl.program_id(0).to(tl.int64)
    o_t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if tl.load(wanted_ptr + i_b * stride_wb).to(tl.int32) != 0:
        token, there = _text_tokens(tokens_ptr + i_b * stride_tb, stride_tt, o_t, length, vocab_size)  # [BLOCK]
        one = tl.full([BLOCK], 1, tl.int32)
        tl.atomic_add(counts_ptr + i_b * vocab_size + token, one, mask=there, sem="relaxed")


@triton.jit(do_not_specialize=["stride_tb", "length"])
def _penalty_kernel(
    tokens_ptr, wanted_ptr, numbers_ptr, prompts_ptr, counts_ptr, out_ptr,
    stride_tb, stride_tt, stride_wb, stride_nb, stride_nn, stride_pb, stride_pv, vocab_size, length,
    REPEATS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Penalties of a part of a text's tokens, those whose count no other place has taken."""
    i_b = tl.program_id(0).to(tl.int64)
    o_t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if tl.load(wanted_ptr + i_b * stride_wb).to(tl.int32) != 0:
        token, there = _text_tokens(tokens_ptr + i_b * stride_tb, stride_tt, o_t, length, vocab_size)  # [BLOCK]
        none = tl.full([BLOCK], 0, tl.int32)
        b_count = tl.atomic_xchg(counts_ptr + i_b * vocab_size + token, none, mask=there, sem="relaxed")
        m_t = there & (b_count > 0)
        p_number = numbers_ptr + i_b * stride_nb
        presence = tl.load(p_number + stride_nn)
        frequency = tl.load(p_number + 2 * stride_nn)
        p_out = out_ptr + i_b * vocab_size + token
        b_x = tl.load(p_out, mask=m_t, other=0.0)  # [BLOCK]
        if REPEATS:
            p_seen = prompts_ptr + i_b * stride_pb + token * stride_pv
            b_seen = tl.load(p_seen, mask=m_t, other=0).to(tl.int32) != 0  # [BLOCK]
            b_x = tl.where(b_seen, b_x, _repetition_penalty(b_x, tl.load(p_number)))
        tl.store(p_out, b_x - frequency * b_count.to(tl.float32) - presence, mask=m_t)


def penalise_logits(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    wanted: torch.Tensor,
    numbers: torch.Tensor,
    prompts: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    """Logits float32 [B, V] with bias and penalties; arguments as in `penalise_logits_ref`, of any strides.

    Equal to the reference bit for bit, but for the sign of a zero. Tokens must be below V: those beyond are skipped,
    since a check would wait for the GPU. Deterministic. Raises TypeError or ValueError naming the argument, before any
    launch.
    """
    check_tensor("logits", logits, (torch.float32,), (None, None))
    batch, vocab_size = logits.shape
    check(1 <= vocab_size < 1 << 30, "logits must have 1 to 2**30 - 1 columns", vocab_size, "pass the logits")
    check_tensor("tokens", tokens, (torch.int64,), (batch, None), logits)
    length = tokens.shape[1]
    check(length < 1 << 30, "tokens must have fewer than 2**30 columns", length, "pass the text")
    check_tensor("wanted", wanted, (torch.bool,), (batch,), logits)
    check_tensor("numbers", numbers, (torch.float32,), (batch, 3), logits)
    repeats, biased = (tensor.dim() != 2 or tensor.shape[1] != 0 for tensor in (prompts, bias))
    check_tensor("prompts", prompts, (torch.bool,), (batch, vocab_size if repeats else 0), logits)
    check_tensor("bias", bias, (torch.float32,), (batch, vocab_size if biased else 0), logits)
    out = torch.empty((batch, vocab_size), dtype=torch.float32, device=logits.device)
    counts = torch.empty((batch, vocab_size), dtype=torch.int32, device=logits.device)
    text = {
        "tokens_ptr": tokens, "wanted_ptr": wanted, "counts_ptr": counts, "stride_tb": tokens.stride(0),
        "stride_tt": tokens.stride(1), "stride_wb": wanted.stride(0), "vocab_size": vocab_size, "length": length,
    }  # fmt: skip
    penalties = {
        "numbers_ptr": numbers, "prompts_ptr": prompts, "out_ptr": out, "stride_nb": numbers.stride(0),
        "stride_pb": prompts.stride(0), "stride_pv": prompts.stride(1), "REPEATS": repeats,
    }  # fmt: skip
    dense = {
        "logits_ptr": logits, "bias_ptr": bias, "stride_lb": logits.stride(0), "stride_lv": logits.stride(1),
        "stride_bb": bias.stride(0), "stride_bv": bias.stride(1), "BIASED": biased, "BLOCK": BLOCK_V,
    }  # fmt: skip
    parts = (batch, cdiv(length, BLOCK_T))
    launch(_bias_kernel, (batch, cdiv(vocab_size, BLOCK_V)), {**text, **penalties, **dense}, num_warps=4)
    launch(_count_kernel, parts, {**text, "BLOCK": BLOCK_T}, num_warps=4)
    alone = {"stride_nn": numbers.stride(1), "BLOCK": BLOCK_T}
    launch(_penalty_kernel, parts, {**text, **penalties, **alone}, num_warps=4, enable_fp_fusion=False)
    return out
