"""What KGW and Unigram share: a keyed green list, its two-rung ladder, and how its tokens are scored."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from caw.checks import require_number
from caw.defaults import DELTA, GAMMA
from caw.triton_kernels import prf_ref as prf
from caw.triton_kernels.ladder_ref import Ladder, Rule, reweight_ladder
from caw.watermarks.base import Position, Watermark

MAX_DELTA = 1e4


@dataclass(frozen=True)
class GreenList(Watermark):
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

    @abstractmethod
    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Whether tokens int64 [B, N] are green after contexts int64 [B, W] -> bool [B, N]."""

    @abstractmethod
    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """The green lists after contexts int64 [B, W] -> bool [B, V]."""

    def validate(self) -> None:
        require_number("gamma", self.gamma, 0, 1, closed=False)
        require_number("delta", self.delta, 0, MAX_DELTA, closed=True)
        if not 0 < prf.green_threshold(self.gamma) < 1 << prf.UNIFORM_BITS:
            raise ValueError(f"gamma must leave both lists non-empty in steps of 2**-24, got {self.gamma!r}; use 0.25")

    def ladder(self, position: Position, max_strength: float) -> Ladder:
        """Original token and likeliest green token; the vocabulary is scanned only if the record holds no green one
        and one beyond it could still be chosen. Kirchenbauer et al. 2023, Algorithm 2; DESIGN section 3."""
        record = position.record
        green = self.green_tokens(position.context, record.ids) & (record.values > -torch.inf)
        found = green.any(dim=1)
        column = green.int().argmax(dim=1, keepdim=True)
        token = torch.where(found, record.ids.gather(1, column)[:, 0], -1)
        logit = torch.where(found, record.values.gather(1, column)[:, 0], -torch.inf)
        rows = (~found & self._reachable_beyond(position, max_strength)).nonzero()[:, 0]
        if rows.numel():
            token[rows], logit[rows] = self._scan(position, rows)
        return reweight_ladder(record.ids[:, 0], record.values[:, 0], token, logit, self.full, max_strength)

    def _reachable_beyond(self, position: Position, max_strength: float) -> torch.Tensor:
        """Whether a token just below the record could still win if it were green, bool [B]."""
        values = position.record.values
        limit = torch.tensor(max_strength, dtype=torch.float32, device=values.device)
        return (values[:, -1] > -torch.inf) & (values[:, -1] + limit * self.full >= values[:, 0])

    def _scan(self, position: Position, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Likeliest green token of whole rows: (token or -1, logit), ties to the smaller id."""
        scores = position.scores[rows].float()
        green = self.green_vocabulary(position.context[rows], scores.shape[1])
        masked = torch.where(green, scores, -torch.inf)
        best = masked.max(dim=1, keepdim=True).values
        token = (green & (masked == best)).int().argmax(dim=1)
        return torch.where(best[:, 0] > -torch.inf, token, -1), best[:, 0]
