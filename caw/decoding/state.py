"""What decoding knows of its B sequences between two steps.

Every tensor is updated in place: a captured step reads and writes the same addresses again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from caw.decoding.evidence import Evidence
from caw.decoding.row_tensors import RowTensors
from caw.record import Record, kept_rows
from caw.watermarks.base import MISSING


@dataclass
class DecodeState:
    """B rows, each with a text or empty.

    logits: float32 [B, V], l_i, the model's own for the next position.
    current: record of p_i. history: records of p_{i-1}, p_{i-2}, ... (as many as the evaluator reads).
    padded_tokens: int64 [B, W + max_new_tokens]; W leading -1 (or the prompt's last tokens, for watermarks that read
        them), then the generated tokens, -1 beyond.
    counts: int64 [B], tokens generated. budgets: int64 [B], the most that may be. active: bool [B].
    streams: int64 [B, 2], see `sampling`. rows: settings of each text.
    pending: int64 [B], a token chosen in the last step that was not among those forwarded, or -1.
    pending_strength, pending_capacity: float32 [B], what it was chosen with.
    evidence: what the texts have shown so far; None without a target.
    """

    logits: torch.Tensor
    current: Record
    history: list[Record]
    padded_tokens: torch.Tensor
    counts: torch.Tensor
    budgets: torch.Tensor
    active: torch.Tensor
    streams: torch.Tensor
    pending: torch.Tensor
    pending_strength: torch.Tensor
    pending_capacity: torch.Tensor
    rows: RowTensors
    window: int
    evidence: Evidence | None = None

    @classmethod
    def empty(
        cls,
        batch: int,
        vocab_size: int,
        history: int,
        window: int,
        max_new_tokens: int,
        device: torch.device,
        ends: int = 0,
        evidence: Evidence | None = None,
    ) -> DecodeState:
        """B = batch places without a text; ends: the most end tokens that a text may have."""
        current = Record.empty(batch, device)
        current.ids.zero_()  # rows that never got a prompt are forwarded with the others and need a token that exists
        return cls(
            logits=torch.zeros(batch, vocab_size, device=device),
            current=current,
            history=[Record.empty(batch, device) for _ in range(history)],
            padded_tokens=torch.full((batch, window + max_new_tokens), MISSING, dtype=torch.int64, device=device),
            counts=torch.zeros(batch, dtype=torch.int64, device=device),
            budgets=torch.zeros(batch, dtype=torch.int64, device=device),
            active=torch.zeros(batch, dtype=torch.bool, device=device),
            streams=torch.zeros(batch, 2, dtype=torch.int64, device=device),
            pending=torch.full((batch,), MISSING, dtype=torch.int64, device=device),
            pending_strength=torch.zeros(batch, device=device),
            pending_capacity=torch.zeros(batch, device=device),
            rows=RowTensors.empty(batch, ends, device),
            window=window,
            evidence=evidence,
        )

    @property
    def batch(self) -> int:
        return self.counts.shape[0]

    @property
    def factors(self) -> torch.Tensor:
        """What the strengths of the next tokens are multiplied by, float32 [B]."""
        return self.rows.factors if self.evidence is None else self.evidence.factors

    def contexts(self) -> torch.Tensor:
        """The last W generated tokens of each sequence, int64 [B, W], -1 where there are none."""
        offsets = torch.arange(self.window, device=self.counts.device)
        return self.padded_tokens.gather(1, self.counts[:, None] + offsets[None])

    def context_repeats(self, context: torch.Tensor) -> torch.Tensor:
        """Whether the context [B, W] already stood before an earlier token of the same output, bool [B]."""
        windows = self.padded_tokens.unfold(1, self.window, 1)[:, :-1]  # [B, max_new_tokens, W]
        earlier = torch.arange(windows.shape[1], device=context.device)[None] < self.counts[:, None]
        return ((windows == context[:, None]).all(dim=-1) & earlier).any(dim=1)

    @property
    def records(self) -> list[torch.Tensor]:
        """The tensors of the records of p_i, p_{i-1}, ..., four each."""
        return [tensor for record in (self.current, *self.history) for tensor in record.tensors]

    def start(
        self,
        rows: torch.Tensor,
        logits: torch.Tensor,
        records: list[Record],
        streams: torch.Tensor,
        budgets: torch.Tensor | None = None,
    ) -> None:
        """Begin new sequences in `rows` (int64 [R]): logits [R, V] of position i, records of p_i, p_{i-1}, ...

        budgets: int64 [R], None = all the room there is.
        """
        self.logits[rows] = logits
        self.current.write(rows, records[0])
        for kept, record in zip(self.history, records[1:], strict=True):
            kept.write(rows, record)
        self.padded_tokens[rows], self.counts[rows], self.active[rows] = MISSING, 0, True
        self.streams[rows], self.pending[rows] = streams, MISSING
        if self.evidence is not None:
            self.evidence.start(rows)
        self.budgets[rows] = self.padded_tokens.shape[1] - self.window if budgets is None else budgets

    def set_prompts(self, rows: torch.Tensor, prompts: Sequence[Sequence[int]]) -> None:
        """Let the last W tokens of the prompts be the context of what `rows` (int64 [R]) generate; after `start`."""
        tails = [[MISSING] * self.window + list(prompt) for prompt in prompts]
        tails = [tail[len(tail) - self.window :] for tail in tails]
        self.padded_tokens[rows, : self.window] = torch.tensor(
            tails, dtype=torch.int64, device=self.padded_tokens.device
        ).reshape(len(tails), self.window)

    def emit(self, tokens: torch.Tensor, emitted: torch.Tensor) -> None:
        """Append tokens int64 [B] where emitted (bool [B])."""
        place = (self.counts + self.window).clamp(max=self.padded_tokens.shape[1] - 1)[:, None]
        kept = self.padded_tokens.gather(1, place)
        self.padded_tokens.scatter_(1, place, torch.where(emitted[:, None], tokens[:, None], kept))
        self.counts += emitted

    def advance(self, moved: torch.Tensor, logits: torch.Tensor, record: Record) -> None:
        """Move to position i + 1 where moved (bool [B]): its logits [B, V] and record."""
        torch.where(moved[:, None], logits, self.logits, out=self.logits)
        records = [record, self.current, *self.history]
        for k in range(len(self.history), -1, -1):  # oldest first, so that nothing is overwritten before it is read
            records[k + 1].take_over(moved, records[k])

    def advance_all(self, logits: torch.Tensor, rows: torch.Tensor, record: Record) -> None:
        """`advance` of every row, its logits being rows[b] (int64 [B]) of logits [N, V]: copied once, not chosen."""
        if logits.dtype == self.logits.dtype:
            torch.index_select(logits, 0, rows, out=self.logits)
        else:
            self.logits.copy_(logits.index_select(0, rows))
        records = [record, self.current, *self.history]
        for k in range(len(self.history), -1, -1):  # oldest first
            for mine, theirs in zip(records[k + 1].tensors, records[k].tensors, strict=True):
                mine.copy_(theirs)

    def advance_some(self, places: torch.Tensor, logits: torch.Tensor, rows: torch.Tensor, record: Record) -> None:
        """`advance` of the rows `places` (int64 [M]), their logits being rows[m] (int64 [M]) of logits [N, V]: what is
        not moved is not touched."""
        self.logits.index_copy_(0, places, logits.index_select(0, rows).to(self.logits.dtype))
        records = [record, self.current, *self.history]
        for k in range(len(self.history), -1, -1):  # oldest first
            records[k + 1].write(places, records[k].take(places))

    def finish(self, tokens: torch.Tensor, emitted: torch.Tensor) -> None:
        """Rest where the token just emitted (int64 [B]) ends its text, as an end token or by the budget."""
        ended = self.rows.ended(tokens[:, None])[:, 0]
        self.active &= ~(emitted & (ended | (self.counts >= self.budgets)))

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all but `rows` (int64 [B'], ascending), which move to the front of the same memory."""
        for name in ("logits", "padded_tokens", "counts", "budgets", "active", "streams", "pending",
                     "pending_strength", "pending_capacity"):  # fmt: skip
            setattr(self, name, kept_rows(getattr(self, name), rows))
        for record in (self.current, *self.history):
            record.keep(rows)
        self.rows.keep(rows)
        if self.evidence is not None:
            self.evidence.keep(rows)

    def released(self) -> DecodeState:
        """A state of no rows, in place of this one."""
        return DecodeState.empty(0, 0, 0, self.window, 0, self.counts.device)
