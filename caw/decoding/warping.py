"""Warp logits in transformers' order: bias and penalties (`penalties.py`), then the op `warp_logits`."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from caw import ops
from caw.decoding.row_settings import RowLimits
from caw.decoding.texts import Texts
from caw.record import Record
from caw.triton_kernels.warp_logits_ref import warp_logits_ref

# takes plain logits float32 [B, V] and what is known of the sequences, returns warped ones; -inf = excluded
Warper = Callable[[torch.Tensor, Texts], torch.Tensor]


@dataclass(frozen=True)
class Warping:
    """Apply what some row may need within the limits, without reading anything back unless it is sparse.

    A row gets the bits that transformers' `RepetitionPenaltyLogitsProcessor`, `TemperatureLogitsWarper`,
    `TopKLogitsWarper`, `TopPLogitsWarper` and `MinPLogitsWarper` give it on a CPU (on CUDA theirs multiply by the
    reciprocal of a temperature, this divides). Of equal logits at the border of top-p those of smallest id go, as with
    a stable sort; transformers leaves it to torch.sort which of them go.

    sparse: whether penalties are skipped where no row needs them, which reads back from the device whether one does.
    native: use the ops, else their references.
    """

    limits: RowLimits
    sparse: bool = False
    native: bool = True

    def __call__(self, logits: torch.Tensor, texts: Texts, record: Record | None = None) -> torch.Tensor:
        """record: of these logits, where it is at hand."""
        limits = self.limits
        if limits.penalised and texts.penalties is not None:
            logits = texts.penalties.apply(logits, texts.made, texts.active, sparse=self.sparse, native=self.native)
        if not limits.warped:
            return logits
        wanted = texts.sampled & texts.active
        rows = wanted, texts.temperatures, texts.top_ks, texts.tails, texts.floors
        if record is not None and self.native and not limits.penalised:
            return ops.warp_recorded(logits, record.values, record.ids, *rows)
        return (ops.warp_logits if self.native else warp_logits_ref)(logits, *rows)


def make_warper(limits: RowLimits, *, sparse: bool = False, native: bool = True) -> Warping | None:
    """Make the warper for these limits; None if nothing changes in any row."""
    return Warping(limits, sparse, native) if limits.penalised or limits.warped else None
