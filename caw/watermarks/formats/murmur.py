"""SGLang's Gumbel watermark (0.5.23, `sglang.srt.sampling.watermarking`): a race on MurmurHash3's 32-bit words.

    context hash  murmur(c_1, ..., c_W)         of the last W tokens of prompt and text
    word          murmur(key low, key high, context hash, token);  F_t = (word + 1/2) / 2^32

With two keys, a context belongs to key A iff murmur(A low, A high, B low, B high, context hash) is below floor(2^32
(1 - alpha)), to key B otherwise. SGLang keeps the hashes of marked contexts, its detector and ours the contexts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from caw.arrays import clamped, columns, float64, space_of, torch
from caw.watermarks.base import MISSING, TokenScores, contexts_of
from caw.watermarks.race import RaceScheme

LOW, WORDS = 0xFFFFFFFF, 1 << 32


def murmur(values: Iterable[Any]) -> Any:
    """Return MurmurHash3 (x86, 32 bits, seed 0) of 32-bit words: integers or int64 arrays, one array at least."""
    state, count = 0, 0
    for value in values:
        mixed = (value * 0xCC9E2D51) & LOW
        state = state ^ ((_turned(mixed, 15) * 0x1B873593) & LOW)
        state, count = (_turned(state, 13) * 5 + 0xE6546B64) & LOW, count + 1
    state = state ^ (4 * count)
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & LOW
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & LOW
    return state ^ (state >> 16)


def _turned(word: Any, by: int) -> Any:
    return ((word << by) | (word >> (32 - by))) & LOW


class MurmurRace(RaceScheme):
    """SGLang's race under one key or two; alpha: share of the second.

    A position is marked if all W tokens before it are known. (SGLang also marks behind a shorter prompt.)
    """

    foreign: ClassVar[bool] = True

    def __init__(self, keys: tuple[int, ...], window: int, alpha: float) -> None:
        super().__init__(window, *keys)
        self.threshold = int((1 - alpha) * WORDS)

    def marks(self, context: torch.Tensor) -> torch.Tensor:
        return (context != MISSING).all(1)

    def words(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the words that race, int64 [B, N]."""
        hashes = murmur(columns(clamped(context)))[:, None]
        halves = [(key & LOW, key >> 32) for key in self.keys]
        words = [murmur((*half, hashes, clamped(tokens))) for half in halves]
        if len(words) == 1:
            return words[0]
        return space_of(tokens).where(murmur((*halves[0], *halves[1], hashes)) < self.threshold, *words)

    def uniforms(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return (float64(self.words(context, tokens)) + 0.5) / WORDS

    def noise(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return -torch.log(-torch.log(self.uniforms(context, tokens)))

    def score_ref(self, ids: torch.Tensor) -> TokenScores:
        contexts = contexts_of(ids, self.window)
        values = -space_of(ids).log1p(-self.uniforms(contexts, ids[:, None])[:, 0])
        return TokenScores(values, contexts, self.marks(contexts) & (ids != MISSING), None, contexts)
