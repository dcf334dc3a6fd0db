"""Races: the keyed noise of each token, and which token it lets win.

The native format is vLLM's Gumbel watermark: F_t is the PRF's uniform number of a token after its context, under the
raw key, and its noise -log(-log F_t).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from caw import prf
from caw.arrays import ops, space_of, torch
from caw.ladder import first_of, race_winner_ref
from caw.watermarks.base import Native, TokenScores, contexts_of, native_scores
from caw.watermarks.keys import signed
from caw.watermarks.scheme import Scheme


class RaceScheme(Scheme):
    """Numbers for a race among tokens.

    shares: an unmarked token's score is the sum of independent Exponential(1) numbers, each times one of these.
    marks_repeats: whether the system marks a context that has already occurred in the text.
    """

    shares: tuple[float, ...] = (1.0,)
    marks_repeats: ClassVar[bool] = False

    def marks(self, context: torch.Tensor) -> torch.Tensor:
        """Return whether the system marks after contexts int64 [B, W], bool [B]."""
        return torch.ones(context.shape[0], dtype=torch.bool, device=context.device)

    @abstractmethod
    def noise(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return Gumbel values float64 [B, N] of tokens [B, N] (-1 = none) after contexts [B, W]."""

    def winner(
        self, logits: torch.Tensor, context: torch.Tensor, temperature: float, keys: torch.Tensor | None, native: bool
    ) -> torch.Tensor:
        """Return the winner among all logits float32 [B, V] / temperature that are not -inf, int64 [B]; 0 where nobody
        races.

        keys: int64 [B], of each row in place of the scheme's; for schemes with `native`. native: by kernels.
        """
        tokens = torch.arange(logits.shape[1], device=logits.device).expand_as(logits)
        race = logits.double() / temperature + self.noise(context, tokens)
        return first_of(torch.where(logits > -torch.inf, race, -torch.inf), tokens)


class Race(RaceScheme):
    """A race under the raw key; number: RACE_TOP_K, RACE_SCALE, or None if no compiled op runs it."""

    def __init__(self, secret: int, window: int, number: int | None) -> None:
        super().__init__(window, secret)
        if number is not None:
            self.native = Native(number, secret)

    def race_keys(self, context: torch.Tensor) -> torch.Tensor:
        """The key that each context [B, W] races under, int64 [B]."""
        key = signed(self.keys[0])
        if isinstance(context, np.ndarray):
            return np.full(len(context), key)
        return torch.full((context.shape[0],), key, device=context.device)

    def words(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the words that race, int64 [B, N]."""
        return prf.context_words(self.race_keys(context)[:, None], context, tokens)

    def noise(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return prf.gumbel(self.words(context, tokens))

    def winner(
        self, logits: torch.Tensor, context: torch.Tensor, temperature: float, keys: torch.Tensor | None, native: bool
    ) -> torch.Tensor:
        op = ops.race_winner if native else race_winner_ref
        return op(logits, context, self.race_keys(context) if keys is None else keys, temperature)

    def values(self, contexts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of tokens [n, 1] after their contexts, float64 [n, 1]."""
        return exponential(self.words(contexts, tokens))

    def score_ref(self, ids: torch.Tensor) -> TokenScores:
        contexts = contexts_of(ids, self.window)
        return native_scores(self.values(contexts, ids[:, None])[:, 0], contexts, ids, races=True)


def exponential(words: torch.Tensor) -> torch.Tensor:
    """Return -log(1 - F) of words, float64: Exponential(1) on unmarked text."""
    return -space_of(words).log1p(-prf.uniform(words))
