"""SBW (stateless Bernoulli watermarking, PyPI packages `sbw` and `vllm-sbw` 1.0.0): Philox instead of lists.

    green iff (word & 0x7fffffff) < int(gamma * 0x7fffffff)
    word = Philox4x32-10(counter (token >> 2, 0, 0, 0), key = low and high 32 bits of the seed)[token & 3]

Its schemes are lm-watermarking's, in wrapping int64 and with Bob Jenkins' 32-bit integer hash. (These are its "gpu-"
names, the default of the vLLM plug-in; names without "gpu-" draw torch lists and equal lm-watermarking's.) A context
that extends before the start of the prompt is filled with token 0. gamma is 0.5 there.

The package's detector compares (word & 0x7fffffff) * 2^-31 with gamma in float32; its generator compares integers. They
differ for about one word in 2^24. The generator's rule is used here.
"""

from __future__ import annotations

import numpy as np

from caw import prf
from caw.arrays import clamped, columns, space_of, torch

LOW31 = 0x7FFFFFFF
HASH_OF_ZERO = 638944058  # of key * 0, so the same under every key


def hashint(values: torch.Tensor) -> torch.Tensor:
    """Return Jenkins' integer hash of values + 1 in signed 32-bit arithmetic, as int64 (may be negative)."""
    i = (values + 1).astype(np.int32) if isinstance(values, np.ndarray) else (values + 1).to(torch.int32)
    i = i - (i << 6)
    i = i ^ (i >> 17)
    i = i - (i << 9)
    i = i ^ (i << 4)
    i = i - (i << 3)
    i = i ^ (i << 10)
    i = i ^ (i >> 15)
    return i.astype(np.int64) if isinstance(i, np.ndarray) else i.to(torch.int64)


def additive(
    key: int, vocab_size: int, context: torch.Tensor, tokens: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    """key * sum, wrapping int64."""
    return key * context.sum(1)[:, None]


def minhash(
    key: int, vocab_size: int, context: torch.Tensor, tokens: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    """min hashint(key * x)."""
    return space_of(context).amin(hashint(key * context), 1)[:, None]


def skipgram(
    key: int, vocab_size: int, context: torch.Tensor, tokens: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    """hashint(key * oldest token)."""
    return hashint(key * context[:, :1])


def selfhash(
    key: int, vocab_size: int, context: torch.Tensor, tokens: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    """Smallest key * hashint(x) * hashint(token) over x in the window and the token itself, wrapping int64."""
    anchor = hashint(tokens)
    best = key * anchor * anchor
    for column in columns(hashint(context)):
        best = space_of(best).minimum(best, key * column[:, None] * anchor)
    return best


def threshold(gamma: float) -> int:
    return int(gamma * LOW31)


def green_fraction(gamma: float) -> float:
    """Return the probability that 31 uniform bits are below the threshold."""
    return threshold(gamma) / (LOW31 + 1)


def green(seeds: torch.Tensor, tokens: torch.Tensor, gamma: float) -> torch.Tensor:
    """Return whether tokens are green under 64-bit seeds (int64, shapes broadcast), as bool."""
    tokens = clamped(tokens)
    none = 0 * tokens
    counter = (tokens >> 2, none, none, none)
    words = prf.philox4x32(counter, seeds & prf.MASK, (seeds >> 32) & prf.MASK)
    return (prf.pick(words, tokens & 3) & LOW31) < threshold(gamma)
