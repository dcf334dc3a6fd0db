"""The native PRF inside kernels: Philox4x32-10 in 32-bit words, bit for bit `prf`.

    state = (0x574D4358, W, 0, 0)
    per 4 context tokens: state = philox(counter = state XOR block, key = (lo ^ offset, hi))
    word  = philox(counter = (token >> 2, s0, s1, s2), key = (lo ^ s3, hi ^ 0x574D544B))[token & 3]

Every word is uint32; tokens are loaded as int64 and truncated, so the missing token -1 becomes 0xFFFFFFFF.
Source: Salmon et al. 2011, doi 10.1145/2063384.2063405; format: vLLM's Philox watermark, version 1.
"""

import torch
import triton
import triton.language as tl

from caw.triton_kernels.launching import check, check_tensor

MAX_CONTEXT = 64
LIST_BITS = 24  # words are compared, and made uniforms, by their upper 24 bits


@triton.jit
def philox4x32(c0, c1, c2, c3, k0, k1):
    """Ten rounds over equally shaped or broadcastable uint32."""
    for i in tl.static_range(10):
        if i > 0:
            k0 = k0 + 0x9E3779B9
            k1 = k1 + 0xBB67AE85
        high_0 = tl.umulhi(c0, 0xD2511F53)
        high_1 = tl.umulhi(c2, 0xCD9E8D57)
        low_0 = c0 * 0xD2511F53
        low_1 = c2 * 0xCD9E8D57
        c0 = high_1 ^ c1 ^ k0
        c1 = low_1
        c2 = high_0 ^ c3 ^ k1
        c3 = low_0
    return c0, c1, c2, c3


@triton.jit
def key_words(key_ptr):
    """Low and high 32 bits of the key there."""
    key = tl.load(key_ptr)
    return key.to(tl.uint32), (key >> 32).to(tl.uint32)


@triton.jit
def absorb_context(context_ptr, lo, hi, W: tl.constexpr):
    """The state (four scalars) after W int64 tokens in a row of memory, oldest first."""
    s0 = tl.full((), 0x574D4358, tl.uint32)
    s1 = tl.full((), W, tl.uint32)
    s2 = tl.full((), 0, tl.uint32)
    s3 = tl.full((), 0, tl.uint32)
    for offset in tl.static_range(0, W, 4):
        s0 = s0 ^ tl.load(context_ptr + offset).to(tl.uint32)
        # past the end stands 2**32 - 1 - i: never a token id, and never the missing token in place 0
        s1 = s1 ^ (tl.load(context_ptr + offset + 1).to(tl.uint32) if offset + 1 < W else 0xFFFFFFFE)
        s2 = s2 ^ (tl.load(context_ptr + offset + 2).to(tl.uint32) if offset + 2 < W else 0xFFFFFFFD)
        s3 = s3 ^ (tl.load(context_ptr + offset + 3).to(tl.uint32) if offset + 3 < W else 0xFFFFFFFC)
        s0, s1, s2, s3 = philox4x32(s0, s1, s2, s3, lo ^ offset, hi)
    return s0, s1, s2, s3


@triton.jit
def absorb_pair(first, second, lo, hi):
    """The state after two context tokens that are already uint32, of any shape."""
    s0 = first ^ 0x574D4358
    s1 = second ^ 2
    return philox4x32(s0, s1, s0 * 0 + 0xFFFFFFFD, s0 * 0 + 0xFFFFFFFC, lo, hi)


@triton.jit
def quad_words(quad, s0, s1, s2, s3, lo, hi):
    """The words of tokens 4 quad, 4 quad + 1, 4 quad + 2, 4 quad + 3 (quad uint32)."""
    return philox4x32(quad, s0, s1, s2, lo ^ s3, hi ^ 0x574D544B)


@triton.jit
def token_word(token, s0, s1, s2, s3, lo, hi):
    """The word of each token (uint32)."""
    w0, w1, w2, w3 = quad_words(token >> 2, s0, s1, s2, s3, lo, hi)
    place = token & 3
    return tl.where(place < 2, tl.where(place == 0, w0, w1), tl.where(place == 2, w2, w3))


@triton.jit
def uniform(word):
    """((word >> 8) + 1) / (2^24 + 1): float64 division, float32 value, held in float64."""
    return (((word >> 8) + 1).to(tl.float64) / 16777217.0).to(tl.float32).to(tl.float64)


@triton.jit
def gumbel(word):
    """-log(-log(uniform)) in float64."""
    return -tl.log(-tl.log(uniform(word)))


def check_prf(key: torch.Tensor, context: torch.Tensor, batch: int, like: torch.Tensor) -> None:
    """Raise unless key is int64 [batch] and context int64 [batch, W <= 64] with contiguous rows."""
    check_tensor("context", context, (torch.int64,), (batch, None), like)
    width = context.shape[1]
    check(width <= MAX_CONTEXT, f"context must have at most {MAX_CONTEXT} tokens", width, "shorten it")
    check_tensor("key", key, (torch.int64,), (batch,), like)
    check(key.is_contiguous(), "key must be contiguous", f"stride {key.stride()}", "call .contiguous()")
    rows = width <= 1 or context.stride(1) == 1
    check(rows, "context must have contiguous rows", f"stride {context.stride()}", "call .contiguous()")
