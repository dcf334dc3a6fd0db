"""Gumbel draws of whole vocabularies for sampling: -log(-log((word + 1/2) / 2^32)), float64 inside, float32 out.

A Philox call gives the words of four neighbouring tokens (sampling_noise_ref).
"""

import torch
import triton
import triton.language as tl

from caw.triton_kernels.launching import cdiv, check, check_tensor, launch
from caw.triton_kernels.prf import absorb_context, check_prf, key_words, quad_words

BLOCK_QUADS = 256


@triton.jit
def _draw(p_out, word, m_t):
    u = (word.to(tl.float64) + 0.5) / 4294967296.0
    tl.store(p_out, (-tl.log(-tl.log(u))).to(tl.float32), mask=m_t)


@triton.jit
def _noise_kernel(context_ptr, key_ptr, out_ptr, stride_cb, vocab_size, W: tl.constexpr,
                  BLOCK_Q: tl.constexpr):  # fmt: skip
    """4 * BLOCK_Q tokens of one row."""
    i_b = tl.program_id(0).to(tl.int64)
    lo, hi = key_words(key_ptr + i_b)
    s0, s1, s2, s3 = absorb_context(context_ptr + i_b * stride_cb, lo, hi, W)
    o_q = tl.program_id(1) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    w0, w1, w2, w3 = quad_words(o_q.to(tl.uint32), s0, s1, s2, s3, lo, hi)
    p_out = out_ptr + i_b * vocab_size + 4 * o_q
    _draw(p_out, w0, 4 * o_q < vocab_size)
    _draw(p_out + 1, w1, 4 * o_q + 1 < vocab_size)
    _draw(p_out + 2, w2, 4 * o_q + 2 < vocab_size)
    _draw(p_out + 3, w3, 4 * o_q + 3 < vocab_size)


def sampling_noise(context: torch.Tensor, key: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Draws float32 [B, V] of contexts int64 [B, W] under keys int64 [B].

    The words are exact; the two float64 logarithms may move a draw across a rounding boundary of float32. Raises
    TypeError or ValueError naming the argument, before any launch.
    """
    check_tensor("context", context, (torch.int64,), (None, None))
    batch, width = context.shape
    check_prf(key, context, batch, context)
    check(1 <= vocab_size < 1 << 31, "vocab_size must be in [1, 2**31)", vocab_size, "pass the width of the logits")
    out = context.new_empty((batch, vocab_size), dtype=torch.float32)
    launch(
        _noise_kernel,
        (batch, cdiv(vocab_size, 4 * BLOCK_QUADS)),
        {
            "context_ptr": context, "out_ptr": out, "stride_cb": context.stride(0), "key_ptr": key,
            "vocab_size": vocab_size, "W": width, "BLOCK_Q": BLOCK_QUADS,
        },
        num_warps=4,
    )  # fmt: skip
    return out
