"""Temperature, top-k and top-p of each row: transformers' warpers, in their order, with tensors for numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from caw.decoding.row_settings import RowLimits
from caw.decoding.state import DecodeState

# takes plain logits float32 [B, V] and what is known of the sequences, returns warped ones; -inf = excluded
Warper = Callable[[torch.Tensor, DecodeState], torch.Tensor]
Warp = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # logits [R, V] and a number for each row


@dataclass(frozen=True)
class Warping:
    """Warps what the limits say that some row may want warped; tensor operations of fixed shapes alone.

    A row gets the bits that transformers' `TemperatureLogitsWarper`, `TopKLogitsWarper` and `TopPLogitsWarper` give it
    on a CPU (on CUDA theirs multiply by the reciprocal of a temperature, this divides).

    sparse: whether rows that want nothing are left out, which reads back from the device which those are.
    """

    limits: RowLimits
    sparse: bool = False

    def __call__(self, logits: torch.Tensor, state: DecodeState) -> torch.Tensor:
        rows = state.rows
        if self.limits.temperature:
            logits = self._warped(logits, state, rows.temperatures != 1, _cooled, rows.temperatures)
        if self.limits.top_k:
            cut = partial(_top_k, greatest=self.limits.top_k)
            logits = self._warped(logits, state, rows.top_ks > 0, cut, rows.top_ks)
        if self.limits.top_p:
            logits = self._warped(logits, state, rows.tails >= 0, _top_p, rows.tails)
        return logits

    def _warped(
        self, logits: torch.Tensor, state: DecodeState, wanted: torch.Tensor, warp: Warp, numbers: torch.Tensor
    ) -> torch.Tensor:
        """Rows of logits [B, V] warped by their own number of `numbers` [B] where wanted, bool [B], or all of them."""
        if not self.sparse:
            return warp(logits, numbers)
        some = (wanted & state.active).nonzero()[:, 0]
        return logits.index_copy(0, some, warp(logits[some], numbers[some])) if some.numel() else logits


def make_warper(limits: RowLimits) -> Warping | None:
    """Temperature, top-k, top-p; None if they change nothing in any row."""
    return Warping(limits) if limits.temperature or limits.top_k or limits.top_p else None


def _cooled(logits: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    return logits / temperatures[:, None]


def _top_k(logits: torch.Tensor, top_ks: torch.Tensor, greatest: int) -> torch.Tensor:
    """Without tokens below the k-th greatest logit, ties with it stay."""
    best = torch.topk(logits, min(greatest, logits.shape[1])).values
    last = (top_ks - 1).clamp(0, best.shape[1] - 1)
    least = torch.where(top_ks > 0, best.gather(1, last[:, None])[:, 0], -torch.inf)
    return logits.masked_fill(logits < least[:, None], -torch.inf)


def _top_p(logits: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
    """Without the least likely tokens whose probabilities together are at most 1 - top_p; the likeliest stays."""
    ordered, ids = torch.sort(logits, descending=False)
    removed = ordered.softmax(dim=-1).cumsum(dim=-1) <= tails[:, None]
    removed[:, -1:] = False
    return logits.masked_fill(removed.scatter(1, ids, removed), -torch.inf)
