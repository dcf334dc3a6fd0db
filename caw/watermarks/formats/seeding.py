"""List seeds of other systems: functions from contexts to seeds, on whole batches of integers.

These systems compute partly in Python's unbounded integers and partly in wrapping int64. Then they call manual_seed(s
mod (2^64 - 1)) (transformers, lm-watermarking) or manual_seed(s) (MarkLLM), and torch's CPU generator reads the low 32
bits. Each of these steps must be reproduced exactly. Negative products matter most: they win every minimum, and their
remainder is one less than their two's complement.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from caw import text_scores
from caw.arrays import beside, columns, space_of, torch

MASK = 0xFFFFFFFF
MODULUS = (1 << 64) - 1
INT64_END = 1 << 63
TABLE_SIZE = 1_000_003
HASHINT_SEED = 2971215073  # lm-watermarking's fixed table
HASH_OF_ZERO = 250535  # of key * 0, so the same under every key: first entry of that table, + 1


def low_bits_of_remainder(products: torch.Tensor) -> torch.Tensor:
    """Return the low 32 bits of s mod (2^64 - 1) for s held in (possibly wrapped) int64."""
    return space_of(products).where(products < 0, products - 1, products) & MASK


def key_times(key: int, values: torch.Tensor, bound: int, modulus: int | None = MODULUS) -> torch.Tensor:
    """Return the low 32 bits of (key * value) mod `modulus` in unbounded integers; key below 2^63, values int64 >= 0,
    any shape.

    bound: greater than all values. modulus: 2^64 - 1, or None for none.
    """
    low = key * values  # wraps: the low 64 bits of the product
    if modulus is None or key * bound <= INT64_END:
        return low & MASK
    # the high 64 bits, from halves whose products fit; 2^64 is 1 modulo 2^64 - 1, so both are added
    key_low, key_high, value_low, value_high = key & MASK, key >> 32, values & MASK, values >> 32
    middle = key_high * value_low + ((key_low * value_low >> 32) & MASK)
    other = key_low * value_high + (middle & MASK)
    total = low + (key_high * value_high + (middle >> 32) + (other >> 32))
    total = total + ((low < 0) & (total >= 0))  # the carry out of 64 bits
    return space_of(total).where(total == -1, 0, total) & MASK  # 2^64 - 1 is 0


@lru_cache(maxsize=8)
def permutation_table(seed: int, size: int) -> np.ndarray:
    """Return torch.randperm(size) of the CPU generator after manual_seed(seed); int64 [size]."""
    return text_scores.permutation(seed, size)


def hashint(values: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """table[x mod 1,000,003] + 1; the remainder is never negative."""
    return beside(table, values)[values % TABLE_SIZE] + 1


def anchored_minimum(key: int, window: torch.Tensor, tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return the least key * hashint(x) * hashint(token), x in window [B, W] or the token; wrapping int64 [B, N]."""
    anchor = hashint(tokens, table)
    others = hashint(window, table)
    best = key * anchor * anchor
    for column in columns(others):
        best = space_of(best).minimum(best, key * column[:, None] * anchor)
    return best


def product_mod(context: torch.Tensor, modulus: int) -> torch.Tensor:
    """Return the product of each row of context int64 [B, W] modulo `modulus` (below 2^31), int64 [B]."""
    out = space_of(context).ones_like(context[:, 0])
    for column in columns(context):
        out = out * column % modulus
    return out


Table: TypeAlias = Callable[[int, int], np.ndarray]
"""(key, vocab_size) -> the table that the seeds of this key are looked up in, int64."""


def fixed_table(key: int, vocab_size: int) -> np.ndarray:
    """Return lm-watermarking's table, the same for all keys."""
    return permutation_table(HASHINT_SEED, TABLE_SIZE)


def keyed_table(key: int, vocab_size: int) -> np.ndarray:
    return permutation_table(key & MASK, TABLE_SIZE)


def vocabulary_table(key: int, vocab_size: int) -> np.ndarray:
    return permutation_table(key & MASK, vocab_size)


Seeds: TypeAlias = "Callable[[int, int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]"
"""(key, vocab_size, context [B, width], tokens [B, N], table, or nothing in it for rules without) -> 32-bit seeds
int64 [B, N] or [B, 1]."""


def transformers_lefthash(
    key: int, vocab_size: int, context: torch.Tensor, tokens: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    """key * last token, whatever the context's width (transformers `WatermarkLogitsProcessor.set_seed`)."""
    return key_times(key, context[:, -1:], vocab_size)


def transformers_selfhash(
    key: int, vocab_size: int, context: torch.Tensor, tokens: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    """Anchored minimum with the table that the key itself seeds (transformers `set_seed`, "selfhash")."""
    return low_bits_of_remainder(anchored_minimum(key, context, tokens, table))


def additive(
    key: int, vocab_size: int, context: torch.Tensor, tokens: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    """key * sum (lm-watermarking `additive_prf`; "simple_1" and "lefthash" are its width 1)."""
    return key_times(key, context.sum(1)[:, None], vocab_size * context.shape[1])


def minhash(
    key: int, vocab_size: int, context: torch.Tensor, tokens: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    """min hashint(key * x) (lm-watermarking `minhash_prf`)."""
    return space_of(context).amin(hashint(key * context, table), 1)[:, None] & MASK


def skipgram(
    key: int, vocab_size: int, context: torch.Tensor, tokens: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    """hashint(key * oldest token) (lm-watermarking `skipgram_prf`)."""
    return hashint(key * context[:, :1], table) & MASK


def minhash_selfhash(
    key: int, vocab_size: int, context: torch.Tensor, tokens: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    """Anchored minimum with the fixed table (lm-watermarking `anchored_minhash_prf`, "selfhash")."""
    return low_bits_of_remainder(anchored_minimum(key, context, tokens, table))


def markllm_kgw(reduce: str) -> Seeds:
    """(key * f) mod V with f = prf[product, sum or oldest of the context] or the least prf of it (MarkLLM KGW)."""

    def seeds(
        key: int, vocab_size: int, context: torch.Tensor, tokens: torch.Tensor, table: torch.Tensor
    ) -> torch.Tensor:
        prf = beside(table, context)
        if reduce == "time":
            f = prf[product_mod(context, vocab_size)]
        elif reduce == "additive":
            f = prf[context.sum(1) % vocab_size]
        elif reduce == "skip":
            f = prf[context[:, 0] % vocab_size]
        else:
            f = space_of(context).amin(prf[context % vocab_size], 1)
        return ((key % vocab_size) * f % vocab_size)[:, None]

    return seeds


def markllm_product(
    key: int, vocab_size: int, context: torch.Tensor, tokens: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    """key * (product of the context mod V) (MarkLLM SWEET, EWD and EXP)."""
    return key_times(key, product_mod(context, vocab_size)[:, None], vocab_size, modulus=None)
