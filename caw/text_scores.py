"""What tokens of texts score: by `caw._plain`, or NumPy, with the numbers of the operators of the same names."""

from __future__ import annotations

import ctypes
import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from caw import prf
from caw.arrays import float64, space_of, torch
from caw.op_indices import RACE_TOP_K, SELFHASH

LIBRARY = Path(__file__).parent / "_plain.so"
VERSION = 1  # of its functions, as in csrc/plain/plain.cpp
REMEDY = "build it with `pip install -e . --no-build-isolation` (needs a C++ compiler)"
SEED_MASK, BITS, MISSING = 0xFFFFFFFF, 32, -1
AT_ONCE = 1 << 18  # words that NumPy works out together; bounds memory to some tens of MB


@functools.cache
def library() -> Any:
    """The C library; None, with a warning, where it is missing or of another version."""
    try:
        found = ctypes.CDLL(str(LIBRARY))
        if found.caw_plain_version() == VERSION:
            return found
        why = "was built for functions of another version"
    except (OSError, AttributeError) as error:
        why = f"does not load ({error})" if LIBRARY.exists() else "is not installed"
    said = f"caw's C library _plain {why}; {REMEDY}; NumPy is used instead and is slower"
    warnings.warn(said, RuntimeWarning, stacklevel=3)
    return None


def _call(name: str, *given: np.ndarray | int) -> None:
    """Call a function of the library with contiguous arrays and integers of 64 bits."""
    numbers = (a.ctypes.data if isinstance(a, np.ndarray) else int(a) for a in given)
    getattr(library(), name)(*(ctypes.c_uint64(number & prf.KEY_MASK) for number in numbers))


def score_tokens(ids: np.ndarray, window: int, key: int, scheme: int, threshold: int) -> tuple[np.ndarray, np.ndarray]:
    """Values float64 [n] of tokens int64 [n] under one key, and selfhash's seeds int64 [n], else [0].

    Texts have `window` missing tokens (-1) between them. key: below 2^64. scheme, threshold: see `base.Native`.
    """
    n = len(ids)
    if library():
        values, seeds = np.empty(n), np.empty(n if scheme == SELFHASH else 0, np.int64)
        _call("caw_score_tokens", _int64(ids), n, window, key, scheme, threshold, values, seeds)
        return values, seeds
    return score_tokens_ref(ids, window, key, scheme, threshold)


def contexts_of(ids: Any, window: int) -> Any:
    """Return the contexts int64 [n, W] of each token of a text int64 [n]: the W = `window` ids before, -1 = missing."""
    n = ids.shape[0]
    if isinstance(ids, np.ndarray):
        padded = np.concatenate([np.full(window, MISSING), ids])
        return np.lib.stride_tricks.sliding_window_view(padded, window)[:n] if window else np.empty((n, 0), np.int64)
    padded = torch.cat([ids.new_full((window,), MISSING), ids])
    return padded.unfold(0, window, 1)[:n] if window else ids.new_empty(n, 0)


def score_tokens_ref(ids: Any, window: int, key: Any, scheme: int, threshold: int) -> tuple[Any, Any]:
    """`score_tokens` of an array or tensor; the operator's reference. key: int, or int64 [n], 64 bits a token."""
    contexts, tokens, seeds = contexts_of(ids, window), ids[:, None], ids[:0]
    keys = key if isinstance(key, int) else key[:, None]
    if scheme == SELFHASH:
        anchors = prf.anchored_seeds(keys, contexts, tokens)
        seeds, words = anchors[:, 0], prf.seeded_words(keys, anchors, tokens)
    else:
        words = prf.context_words(keys, contexts, tokens)
    return _scores(words[:, 0], scheme, threshold), seeds


def score_keys(contexts: np.ndarray, ids: np.ndarray, keys: np.ndarray, scheme: int, threshold: int) -> np.ndarray:
    """What evidence scores in all under each of m keys, float64 [m]; everything that is given counts.

    contexts: int64 [n, W], the tokens before each piece of evidence, -1 where there are none. ids: int64 [n]. keys:
    int64 [m], 64 bits each. ValueError for selfhash, whose evidence is another under each key.
    """
    if scheme == SELFHASH:
        raise ValueError("scheme must be 0, 2 or 3, got 1; selfhash has other evidence under each key")
    sums = np.zeros(len(keys))
    if library():
        n, window = contexts.shape
        _call(
            "caw_score_keys", _int64(contexts), _int64(ids), n, window, _int64(keys), len(keys), scheme, threshold, sums
        )
        return sums
    step = max(1, AT_ONCE // max(1, len(ids)))
    for start in range(0, len(keys), step):
        some = keys[start : start + step, None]
        words = prf.token_word(some, prf.absorb_context(some, [c[None] for c in contexts.T]), ids[None])
        sums[start : start + step] = _scores(words, scheme, threshold).sum(1)
    return sums


def _scores(words: Any, scheme: int, threshold: int) -> Any:
    if scheme >= RACE_TOP_K:  # both races
        return -space_of(words).log1p(-prf.uniform(words))
    return float64(prf.below(words, threshold))


def permutation(seed: int, size: int, count: int | None = None) -> np.ndarray:
    """torch.randperm(size)[:count] of the CPU generator after manual_seed(seed), int64: a forward Fisher-Yates."""
    count = size if count is None else count
    if library():
        heads = np.empty(count, np.int64)
        _call("caw_permutation", seed & SEED_MASK, size, count, heads)
        return heads
    order, places = list(range(size)), np.arange(count)
    for i, at in enumerate((places + _stream(seed, count) % (size - places)).tolist()):
        order[i], order[at] = order[at], order[i]
    return np.array(order[:count])


def permutation_green(seeds: np.ndarray, vocab_size: int, count: int) -> np.ndarray:
    """The first `count` entries of each seed's permutation as bits, int32 [N, ceil(V / 32)]: t % 32 of word t // 32."""
    member = np.zeros((len(seeds), (vocab_size + BITS - 1) // BITS * BITS), dtype=bool)
    for row, seed in zip(member, seeds.tolist(), strict=True):
        row[permutation(seed, vocab_size, count)] = True
    return np.packbits(member, axis=1, bitorder="little").view("<i4")


def permutation_contains(seeds: np.ndarray, tokens: np.ndarray, vocab_size: int, count: int) -> np.ndarray:
    """Whether tokens[i] is among the first `count` entries of the permutation of seeds[i], bool [N]; beyond V: no."""
    inside = np.zeros(len(seeds), dtype=bool)
    if library():
        _call("caw_contains", _int64(seeds), _int64(tokens), len(tokens), vocab_size, count, inside)
        return inside
    for seed in np.unique(seeds & SEED_MASK):
        asks = seeds & SEED_MASK == seed
        inside[asks] = np.isin(tokens[asks], permutation(int(seed), vocab_size, count))
    return inside


def generator_words(seeds: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Word indices[i] of seeds[i]'s generator, int64 [N]; torch.rand(n)[t] = (word t & 0xFFFFFF) / 2^24."""
    if not library():
        return generator_words_ref(seeds, indices)
    words = np.empty(len(indices), np.int64)
    _call("caw_words", _int64(seeds), _int64(indices), len(words), words)
    return words


def generator_words_ref(seeds: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """`generator_words` in NumPy."""
    words = np.empty(len(indices), np.int64)
    unique, inverse = np.unique(seeds & SEED_MASK, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    for seed, asks in zip(unique.tolist(), np.split(order, np.bincount(inverse).cumsum()[:-1]), strict=True):
        words[asks] = _stream(seed, int(indices[asks].max()) + 1)[indices[asks]]
    return words


def _stream(seed: int, size: int) -> np.ndarray:
    """The first numbers of MT19937 as torch and NumPy seed it, int64 [size]."""
    return np.random.RandomState(seed & SEED_MASK).randint(0, 1 << BITS, size=size, dtype=np.uint32).astype(np.int64)


def _int64(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int64)
