"""State of B rows between two steps: logits and records of the next position, updated in place for captured steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from caw.record import Record, Rows
from caw.watermarks.base import MISSING


@dataclass
class Positions(Rows):
    """What an evaluator reads of B texts. current: record of p_i. history: those of p_{i-1}, p_{i-2}, ... it reads."""

    current: Record
    history: list[Record]

    @property
    def records(self) -> list[torch.Tensor]:
        """The tensors of the records of p_i, p_{i-1}, ..., four each."""
        return [tensor for record in (self.current, *self.history) for tensor in record.tensors]

    def write(self, rows: torch.Tensor, records: Sequence[Record]) -> None:
        """Put records of R rows each, of p_i, p_{i-1}, ..., into `rows` (int64 [R])."""
        for mine, record in zip((self.current, *self.history), records, strict=True):
            mine.write(rows, record)

    def move(self, record: Record, rows: torch.Tensor | None = None) -> None:
        """Move every row, or some (int64 [R]), to position i + 1, of which these are the records, of all rows."""
        records = [record, self.current, *self.history]
        for number in range(len(self.history), -1, -1):  # oldest first, so that nothing is overwritten unread
            mine, theirs = records[number + 1], records[number]
            if rows is None:
                for to, tensor in zip(mine.tensors, theirs.tensors, strict=True):
                    to.copy_(tensor)
            else:
                mine.write(rows, theirs.take(rows))


@dataclass
class DecodeState(Positions):
    """Positions of B rows, and what a step of a model here needs besides.

    logits: float32 [B, V], l_i, the model's own for the next position.
    pending: int64 [B], a token chosen in the last step that was not among those forwarded, or -1.
    pending_strength, pending_capacity: float32 [B], what it was chosen with.
    forced: int64 [B], the next token whatever the logits say, or -1; set by forks that change a token (`forks.py`),
        taken by the next `Choosing.ladder`. None = there is none.
    """

    logits: torch.Tensor
    pending: torch.Tensor
    pending_strength: torch.Tensor
    pending_capacity: torch.Tensor
    forced: torch.Tensor | None = None

    @classmethod
    def empty(cls, batch: int, vocab_size: int, history: int, device: torch.device) -> "DecodeState":
        """Make B = batch rows without a text."""
        current = Record.empty(batch, device)
        current.ids.zero_()  # rows that never got a prompt are forwarded with the others and need a token that exists
        logits = torch.zeros(batch, vocab_size, device=device)
        return cls.of(logits, current, [Record.empty(batch, device) for _ in range(history)])

    @classmethod
    def of(cls, logits: torch.Tensor, current: Record, history: list[Record]) -> "DecodeState":
        """Make a state from logits [B, V] and records, with no token pending."""
        device, batch = logits.device, logits.shape[0]
        return cls(
            logits=logits,
            current=current,
            history=history,
            pending=torch.full((batch,), MISSING, dtype=torch.int64, device=device),
            pending_strength=torch.zeros(batch, device=device),
            pending_capacity=torch.zeros(batch, device=device),
        )

    @property
    def batch(self) -> int:
        return self.pending.shape[0]

    def start(self, rows: torch.Tensor, logits: torch.Tensor, records: Sequence[Record]) -> None:
        """Begin new texts in `rows` (int64 [R]): logits [R, V] of position i, records of p_i, p_{i-1}, ..."""
        self.logits[rows], self.pending[rows] = logits, MISSING
        self.write(rows, records)

    def advance_all(self, logits: torch.Tensor, rows: torch.Tensor, record: Record) -> None:
        """Move every row to position i + 1: its logits are rows[b] (int64 [B]) of logits [N, V], copied once.

        Neighbours in the memory of a CPU are not copied at all: the state takes that memory, used by nobody later.
        """
        first, count = (int(rows[0]), rows.shape[0]) if rows.is_cpu and rows.numel() else (0, -1)
        if logits.dtype == self.logits.dtype and rows.tolist() == list(range(first, first + count)):
            self.logits = logits[first : first + count]
        elif logits.dtype == self.logits.dtype:
            torch.index_select(logits, 0, rows, out=self.logits)
        else:
            self.logits.copy_(logits.index_select(0, rows))
        self.move(record)

    def advance_some(self, places: torch.Tensor, logits: torch.Tensor, rows: torch.Tensor, record: Record) -> None:
        """Move rows `places` (int64 [M]) to position i + 1: their logits are rows[m] (int64 [M]) of logits [N, V]."""
        self.logits.index_copy_(0, places, logits.index_select(0, rows).to(self.logits.dtype))
        self.move(record, places)
