"""Ring buffer for the results of captured steps, written without the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from caw.decoding.trace import LogProbs, StepResult
from caw.op_indices import BROKEN, NOT_EMITTED


@dataclass
class OutputRing:
    """Results of the last R steps of B sequences.

    integers: int64 [R, B, 1 or 3 + M, + N]: token (-1 = none emitted, -2 = logits that
        are not finite); with a trace also choice, counts and candidates; with log-probabilities the likeliest tokens.
    floats: float32 [R, B, 2 or 0, + 1 + N]: strength and capacity; log-probabilities; None without either.
    cursor: int64 [1], where the next step writes. trace: whether there is one. said: N, 0 without log-probabilities.
    forwarded: of all results, as `StepResult` has it.
    """

    integers: torch.Tensor
    floats: torch.Tensor | None
    cursor: torch.Tensor
    trace: bool
    said: int = 0
    forwarded: int = 0

    @classmethod
    def empty(cls, size: int, batch: int, rungs: int, trace: bool, device: torch.device, said: int = 0) -> OutputRing:
        """R = size; rungs: M, the width of the ladders."""
        columns, numbers = (3 + rungs if trace else 1) + said, (2 if trace else 0) + (1 + said if said else 0)
        return cls(
            integers=torch.full((size, batch, columns), NOT_EMITTED, dtype=torch.int64, device=device),
            floats=torch.zeros(size, batch, numbers, device=device) if numbers else None,
            cursor=torch.zeros(1, dtype=torch.int64, device=device),
            trace=trace,
            said=said,
        )

    @property
    def size(self) -> int:
        return self.integers.shape[0]

    def write(self, result: StepResult) -> None:
        self.forwarded = result.forwarded
        tokens = torch.where(result.emitted, result.tokens, NOT_EMITTED)
        columns, numbers = [torch.where(result.broken, BROKEN, tokens)[:, None]], []
        if self.trace:
            columns += [result.choice[:, None], result.counts[:, None], result.candidates]
            numbers += [result.strength[:, None], result.capacity[:, None]]
        if result.log_probs is not None:
            columns.append(result.log_probs.ids)
            numbers.append(result.log_probs.values)
        if self.floats is not None:
            self.floats.index_copy_(0, self.cursor, torch.cat(numbers, dim=1)[None])
        self.integers.index_copy_(0, self.cursor, torch.cat(columns, dim=1)[None])
        self.cursor.add_(1).remainder_(self.size)

    def read(self, integers: torch.Tensor, floats: torch.Tensor | None, steps: int) -> list[StepResult]:
        """Return the first `steps` results from copies of `integers` and `floats`."""
        results = []
        for step in range(steps):
            row, own, said = integers[step], integers.shape[2] - self.said, None
            tokens = row[:, 0]
            if floats is None or not self.trace:  # the rest was not asked for
                nothing = torch.zeros(tokens.shape)
                detail = (torch.zeros_like(tokens), tokens[:, None], torch.ones_like(tokens), nothing, nothing)
            else:
                detail = (row[:, 1], row[:, 3:own], row[:, 2], floats[step, :, 0], floats[step, :, 1])
            if self.said and floats is not None:
                said = LogProbs(row[:, own:], floats[step, :, -1 - self.said :])
            results.append(StepResult(tokens >= 0, tokens, *detail, tokens == BROKEN, self.forwarded, said))
        return results
