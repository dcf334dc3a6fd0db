"""What KGW and Unigram share: keyed green lists and their two-rung ladder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch

from caw.checks import require_number
from caw.defaults import DELTA, GAMMA
from caw.triton_kernels import prf_ref as prf
from caw.triton_kernels.ladder_ref import Ladder, Rule, reweight_ladder
from caw.watermarks.base import Position, Watermark
from caw.watermarks.scheme import Formatted, Scheme

MAX_DELTA = 1e4


class KeyedLists(ABC):
    """Lists of tokens that a key makes of contexts."""

    @abstractmethod
    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Whether tokens int64 [B, N] are green after contexts int64 [B, W] -> bool [B, N]."""

    @abstractmethod
    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """The green lists after contexts int64 [B, W] -> bool [B, V]."""

    def likeliest_green(
        self, position: Position, delta: float, max_strength: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest green token of each row, int64 [B], and its logit, float32 [B]; -1 and -inf where none counts.

        The vocabulary is scanned only if the record holds no green token and one beyond it could still be chosen.
        """
        record = position.record
        green = self.green_tokens(position.context, record.ids) & (record.values > -torch.inf)
        found = green.any(dim=1)
        column = green.int().argmax(dim=1, keepdim=True)
        token = torch.where(found, record.ids.gather(1, column)[:, 0], -1)
        logit = torch.where(found, record.values.gather(1, column)[:, 0], -torch.inf)
        # whether a token just below the record could still win if it were green
        limit = torch.tensor(max_strength, dtype=torch.float32, device=record.values.device)
        last = record.values[:, -1]
        reachable = (last > -torch.inf) & (last + limit * delta >= record.values[:, 0])
        rows = (~found & reachable).nonzero()[:, 0]
        if rows.numel():
            token[rows], logit[rows] = self._scan(position, rows)
        return token, logit

    def _scan(self, position: Position, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Likeliest green token of whole rows: (token or -1, logit), ties to the smaller id."""
        scores = position.scores[rows].float()
        green = self.green_vocabulary(position.context[rows], scores.shape[1])
        masked = torch.where(green, scores, -torch.inf)
        best = masked.max(dim=1, keepdim=True).values
        token = (green & (masked == best)).int().argmax(dim=1)
        return torch.where(best[:, 0] > -torch.inf, token, -1), best[:, 0]


@dataclass(frozen=True)
class GreenList(KeyedLists, Watermark):
    """A watermark that adds delta to the logits of green tokens."""

    gamma: float = GAMMA
    delta: float = DELTA

    @property
    def rule(self) -> Rule:
        return "reweight"

    @property
    def full(self) -> float:
        return float(self.delta)

    @property
    def green_fraction(self) -> float:
        """Probability that a token is green under the null hypothesis: floor(gamma * 2^24) / 2^24."""
        return prf.green_threshold(self.gamma) / (1 << prf.UNIFORM_BITS)

    @property
    def null_moments(self) -> tuple[float, float]:
        return self.green_fraction, self.green_fraction * (1 - self.green_fraction)

    @property
    def null_third(self) -> float:
        f = self.green_fraction
        return f * (1 - f) * (1 - 2 * f)

    def validate(self) -> None:
        require_number("gamma", self.gamma, 0, 1, closed=False)
        require_number("delta", self.delta, 0, MAX_DELTA, closed=True)
        if not 0 < prf.green_threshold(self.gamma) < 1 << prf.UNIFORM_BITS:
            raise ValueError(f"gamma must leave both lists non-empty in steps of 2**-24, got {self.gamma!r}; use 0.25")

    def ladder(self, position: Position, max_strength: float) -> Ladder:
        """Original token and likeliest green one. Kirchenbauer et al. 2023, Algorithm 2."""
        ids, values = position.record.ids, position.record.values
        token, logit = self.likeliest_green(position, self.full, max_strength)
        return reweight_ladder(ids[:, 0], values[:, 0], token, logit, self.full, max_strength)


class GreenScheme(KeyedLists, Scheme):
    """A scheme of green lists.

    width: the context's width as the format counts it, which may count the candidate.
    """

    width: int

    @property
    @abstractmethod
    def fraction(self) -> float:
        """Probability that a token is green under the null hypothesis."""


class FormattedList(Formatted, GreenList):
    """A green-list watermark that has a format."""

    @cached_property
    @abstractmethod
    def scheme(self) -> GreenScheme:
        """The lists of this format and these parameters."""

    @property
    def green_fraction(self) -> float:
        return self.scheme.fraction

    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return self.scheme.green_tokens(context, tokens)

    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        return self.scheme.green_vocabulary(context, vocab_size)

    def likeliest_green(
        self, position: Position, delta: float, max_strength: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.scheme.likeliest_green(position, delta, max_strength)
