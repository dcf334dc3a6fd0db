"""Rows of tensors, one for each text of a batch, and the record: what later steps need of a row of logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from caw.arrays import ops, torch
from caw.defaults import RECORD_SIZE

R = TypeVar("R", bound="Rows")


class Rows:
    """What a batch keeps of its B texts: tensors [B, ...], written in place, other `Rows`, and lists of B objects."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors, those of its parts too, in the order of the fields."""
        return [tensor for value in vars(self).values() for tensor in _leaves(value)]

    def take(self: R, rows: torch.Tensor | slice) -> R:
        """A copy of these rows (int64 [R]); of a slice, the same memory."""
        return self.each(rows, lambda tensor, some: tensor[some])

    def keep(self, rows: torch.Tensor) -> None:
        """Drop every row but these (int64 [B'], ascending), which move to the front of the same memory."""
        vars(self).update(vars(self.each(rows, kept_rows)))

    def fork(self, row: int, to: int) -> None:
        """Copy row `row` to row `to`."""
        for tensor in self.tensors:
            tensor[to] = tensor[row]

    def each(self: R, rows: Any, change: Callable[[torch.Tensor, Any], torch.Tensor]) -> R:
        """Return these rows, of each tensor what `change` makes of it and them."""
        new = object.__new__(type(self))
        vars(new).update({name: _each(value, rows, change) for name, value in vars(self).items()})
        return new


def _leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = vars(value).values() if isinstance(value, Rows) else value if isinstance(value, list) else ()
    return [tensor for part in parts for tensor in _leaves(part)]


def _each(value: Any, rows: Any, change: Callable[[torch.Tensor, Any], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value, rows)
    if isinstance(value, Rows):
        return value.each(rows, change)
    if not isinstance(value, list):
        return value
    if all(isinstance(part, Rows) for part in value):
        return [part.each(rows, change) for part in value]
    return value[rows] if isinstance(rows, slice) else [value[row] for row in rows.tolist()]


def kept_rows(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """tensor[rows] as a view of the front of the same memory; the rest of it is free."""
    tensor[: rows.numel()] = tensor[rows]
    return tensor[: rows.numel()]


@dataclass
class Record(Rows):
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

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.values, self.ids, self.probs, self.logsumexp]

    def write(self, rows: torch.Tensor, other: Record) -> None:
        """Overwrite `rows` (int64 [R]) in place with the R rows of `other`."""
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            mine[rows] = theirs

    def where(self, mask: torch.Tensor, other: Record) -> Record:
        """Return rows of `other` where mask [B] is true, of self elsewhere."""
        m = mask[:, None]
        return Record(
            torch.where(m, other.values, self.values),
            torch.where(m, other.ids, self.ids),
            torch.where(m, other.probs, self.probs),
            torch.where(mask, other.logsumexp, self.logsumexp),
        )
