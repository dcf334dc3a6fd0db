"""The record of one distribution: the part of a row of logits that later steps need, read in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caw.arrays import ops, torch
from caw.defaults import RECORD_SIZE


@dataclass
class Record:
    """Top-K of the logits of B rows, ties to the smaller id.

    values: float32 [B, K], descending logits; -inf where the row has fewer than K entries.
    ids: int64 [B, K]; -1 where padded.
    probs: float32 [B, K], softmax over the whole row at temperature 1.
    logsumexp: float32 [B], nats.
    """

    values: torch.Tensor
    ids: torch.Tensor
    probs: torch.Tensor
    logsumexp: torch.Tensor

    @classmethod
    def from_logits(cls, logits: torch.Tensor, k: int = RECORD_SIZE, kernels: ops.Ops | None = None) -> Record:
        """Build the record of logits [B, V]; `kernels` None = as torch dispatches."""
        return cls(*(ops.topk_softmax if kernels is None else kernels.topk_softmax)(logits, k))

    @classmethod
    def empty(cls, batch: int, device: torch.device, k: int = RECORD_SIZE) -> Record:
        """Build records of positions that do not exist: probability 0 everywhere, which features turn into padding."""
        return cls(
            values=torch.full((batch, k), -torch.inf, device=device),
            ids=torch.full((batch, k), -1, dtype=torch.int64, device=device),
            probs=torch.zeros(batch, k, device=device),
            logsumexp=torch.full((batch,), -torch.inf, device=device),
        )

    @classmethod
    def joined(cls, records: Sequence[Record]) -> Record:
        """Put the rows of several records into one."""
        return cls(*(torch.cat(parts) for parts in zip(*(record.tensors for record in records), strict=True)))

    def write(self, rows: torch.Tensor, other: Record) -> None:
        """Overwrite `rows` (int64 [R]) in place with the R rows of `other`."""
        self.values[rows], self.ids[rows] = other.values, other.ids
        self.probs[rows], self.logsumexp[rows] = other.probs, other.logsumexp

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Values, ids, probs, logsumexp."""
        return [self.values, self.ids, self.probs, self.logsumexp]

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows (int64 [R], ascending), moved to the front of the same memory."""
        self.values, self.ids, self.probs, self.logsumexp = (kept_rows(t, rows) for t in self.tensors)

    def where(self, mask: torch.Tensor, other: Record) -> Record:
        """Return rows of `other` where mask [B] is true, of self elsewhere."""
        m = mask[:, None]
        return Record(
            torch.where(m, other.values, self.values),
            torch.where(m, other.ids, self.ids),
            torch.where(m, other.probs, self.probs),
            torch.where(mask, other.logsumexp, self.logsumexp),
        )

    def take(self, rows: torch.Tensor) -> Record:
        """Return the rows int64 [R] as a new record."""
        return Record(self.values[rows], self.ids[rows], self.probs[rows], self.logsumexp[rows])


def kept_rows(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """tensor[rows] as a view of the front of the same memory; the rest of it is free."""
    tensor[: rows.numel()] = tensor[rows]
    return tensor[: rows.numel()]
