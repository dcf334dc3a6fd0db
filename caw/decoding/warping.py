"""Temperature, top-k and top-p of each row: transformers' warpers, in their order, with tensors for numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from caw.decoding.row_settings import RowLimits
from caw.decoding.row_tensors import RowTensors
from caw.decoding.state import DecodeState

# takes plain logits float32 [B, V] and what is known of the sequences, returns warped ones; -inf = excluded
Warper = Callable[[torch.Tensor, DecodeState], torch.Tensor]


@dataclass(frozen=True)
class Warping:
    """Warps what the limits say that some row may want warped; tensor operations of fixed shapes alone.

    A row gets the bits that transformers' `TemperatureLogitsWarper`, `TopKLogitsWarper` and `TopPLogitsWarper` give it
    on a CPU (on CUDA theirs multiply by the reciprocal of a temperature, this divides).
    """

    limits: RowLimits

    def __call__(self, logits: torch.Tensor, state: DecodeState) -> torch.Tensor:
        rows = state.rows
        if self.limits.temperature:
            logits = logits / rows.temperatures[:, None]
        if self.limits.top_k:
            logits = _top_k(logits, rows, self.limits.top_k)
        if self.limits.top_p:
            logits = _top_p(logits, rows)
        return logits


def make_warper(limits: RowLimits) -> Warping | None:
    """Temperature, top-k, top-p; None if they change nothing in any row."""
    return Warping(limits) if limits.temperature or limits.top_k or limits.top_p else None


def _top_k(logits: torch.Tensor, rows: RowTensors, greatest: int) -> torch.Tensor:
    """Without tokens below the k-th greatest logit, ties with it stay."""
    best = torch.topk(logits, min(greatest, logits.shape[1])).values
    last = (rows.top_ks - 1).clamp(0, best.shape[1] - 1)
    least = torch.where(rows.top_ks > 0, best.gather(1, last[:, None])[:, 0], -torch.inf)
    return logits.masked_fill(logits < least[:, None], -torch.inf)


def _top_p(logits: torch.Tensor, rows: RowTensors) -> torch.Tensor:
    """Without the least likely tokens whose probabilities together are at most 1 - top_p; the likeliest stays."""
    ordered, ids = torch.sort(logits, descending=False)
    removed = ordered.softmax(dim=-1).cumsum(dim=-1) <= rows.tails[:, None]
    removed[:, -1:] = False
    return logits.masked_fill(removed.scatter(1, ids, removed), -torch.inf)
