"""The keyed pseudo-random function of this library: Philox4x32-10 in pure integer arithmetic.

A 32-bit word for (key, context tokens, token):

    state = (0x574D4358, W, 0, 0)                                  # W context tokens, missing ones are -1
    per 4 context tokens: state = philox(counter = state XOR block, key = (lo ^ offset, hi))
    word  = philox(counter = (token >> 2, s0, s1, s2), key = (lo ^ s3, hi ^ 0x574D544B))[token & 3]

This is the number format of vLLM's Philox watermark, version 1, so each can read the other's text. Every function is
written once for Python ints, NumPy int64 arrays and torch int64 tensors: 32-bit values live in 64-bit integers, whose
products may wrap, and the masks after each product undo the sign. A key is an int below 2^64, or a torch tensor of
keys, one per row, whose int64 hold the same 64 bits.

Source: Salmon et al. 2011, doi 10.1145/2063384.2063405; vLLM `v1/watermarking/prfs/philox.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from caw.arrays import columns, is_tensor, space_of, torch

MASK, KEY_MASK = 0xFFFFFFFF, (1 << 64) - 1
ROUNDS = 10
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
CONTEXT_DOMAIN, TOKEN_DOMAIN = 0x574D4358, 0x574D544B
UNIFORM_BITS = 24

Words = tuple[Any, Any, Any, Any]  # four 32-bit words: int, int64 ndarray or int64 tensor alike
Key: TypeAlias = "int | torch.Tensor"


def philox4x32(counter: Words, key_lo: Any, key_hi: Any) -> Words:
    """Run ten rounds of Philox4x32 over equally shaped (or broadcastable) 32-bit words."""
    c0, c1, c2, c3 = counter
    for round_index in range(ROUNDS):
        if round_index:
            key_lo, key_hi = (key_lo + WEYL_0) & MASK, (key_hi + WEYL_1) & MASK
        # the 64-bit product may wrap to a negative number; shift-then-mask still gives its unsigned high half
        product_0, product_1 = c0 * MULTIPLIER_0, c2 * MULTIPLIER_1
        c0, c1, c2, c3 = (
            ((product_1 >> 32) & MASK) ^ c1 ^ key_lo,
            product_1 & MASK,
            ((product_0 >> 32) & MASK) ^ c3 ^ key_hi,
            product_0 & MASK,
        )
    return c0, c1, c2, c3


def key_halves(key: Key) -> tuple[Any, Any]:
    """Return the low and high 32 bits."""
    return key & MASK, (key >> 32) & MASK


def absorb_context(key: Key, context: Sequence[Any]) -> Words:
    """Return the state after context tokens, oldest first, a scalar or array each; tensor keys broadcast with them."""
    key_lo, key_hi = key_halves(key)
    state: Words = (CONTEXT_DOMAIN, len(context), 0, 0)
    for offset in range(0, len(context), 4):
        block = [context[offset + i] & MASK if offset + i < len(context) else MASK - i for i in range(4)]
        counter = (state[0] ^ block[0], state[1] ^ block[1], state[2] ^ block[2], state[3] ^ block[3])
        state = philox4x32(counter, key_lo ^ offset, key_hi)
    return state


def token_word(key: Key, state: Words, token: Any) -> Any:
    """Return the 32-bit word of `token` under an absorbed context; shapes broadcast."""
    token = token & MASK
    key_lo, key_hi = key_halves(key)
    words = philox4x32((token >> 2, state[0], state[1], state[2]), key_lo ^ state[3], key_hi ^ TOKEN_DOMAIN)
    return pick(words, token & 3)


def context_words(key: Key, contexts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return words int64 [..., N] of tokens [..., N] under contexts [..., W] (int64, -1 = missing); keys [..., 1]."""
    return token_word(key, absorb_context(key, [c[..., None] for c in columns(contexts)]), tokens)


def vocabulary_words(key: Key, contexts: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return the words of every token id below `vocab_size` under `contexts` [B, W], int64 [B, V]; V/4 Philox calls per
    row.

    Keys are int or [B, 1].
    """
    state = absorb_context(key, [c[..., None] for c in columns(contexts)])
    blocks = torch.arange((vocab_size + 3) // 4, device=contexts.device).expand(contexts.shape[0], -1)
    key_lo, key_hi = key_halves(key)
    words = philox4x32((blocks, state[0], state[1], state[2]), key_lo ^ state[3], key_hi ^ TOKEN_DOMAIN)
    stacked = torch.stack([w.expand(blocks.shape) for w in words], dim=-1)
    return stacked.flatten(1)[:, :vocab_size]


def anchored_seeds(key: Key, contexts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the smallest word of each of `tokens` [..., N] behind a single token of its context [..., W >= 1]."""
    np_or_torch = space_of(contexts)
    return np_or_torch.amin(np_or_torch.stack([context_words(key, x[..., None], tokens) for x in columns(contexts)]), 0)


def anchored_vocabulary_seeds(key: Key, contexts: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Compute `anchored_seeds` of every token id below `vocab_size`, int64 [B, V]."""
    return torch.stack([vocabulary_words(key, x[:, None], vocab_size) for x in contexts.unbind(1)]).amin(dim=0)


def seeded_words(key: Key, seeds: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the words of tokens behind the context (seed, token)."""
    return token_word(key, absorb_context(key, [seeds, tokens]), tokens)


def pick(words: Words, index: Any) -> Any:
    """Return words[index] for an index 0..3, elementwise."""
    if is_tensor(index):
        out = torch.where(index == 1, words[1], words[0])
        return torch.where(index == 3, words[3], torch.where(index == 2, words[2], out))
    if isinstance(index, np.ndarray):
        return np.choose(index, np.broadcast_arrays(*words))
    return words[index]


def uniform(word: Any) -> Any:
    """Map a word to ((word >> 8) + 1) / (2^24 + 1) in (0, 1): float64 division, float32 value, stored in float64."""
    numerator = (word >> (32 - UNIFORM_BITS)) + 1
    denominator = (1 << UNIFORM_BITS) + 1
    if is_tensor(word):
        return (numerator.double() / denominator).float().double()
    if isinstance(word, np.ndarray):
        return (numerator / denominator).astype(np.float32).astype(np.float64)
    return float(np.float32(numerator / denominator))


def gumbel(word: Any) -> Any:
    """Map a word to a standard Gumbel value -log(-log(uniform)) in float64."""
    u = uniform(word)
    if is_tensor(u):
        return -torch.log(-torch.log(u))
    return -np.log(-np.log(u))


def green(word: Any, gamma: float) -> Any:
    """Return whether a word is in the green list: (word >> 8) < floor(gamma * 2^24)."""
    return below(word, green_threshold(gamma))


def below(word: Any, threshold: int) -> Any:
    """Return whether the 24 high bits of a word are below the threshold."""
    return (word >> (32 - UNIFORM_BITS)) < threshold


def green_threshold(gamma: float) -> int:
    return int(gamma * (1 << UNIFORM_BITS))
