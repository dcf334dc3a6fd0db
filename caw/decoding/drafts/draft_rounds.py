"""Captured steps with drafts, one at a time: what the host drafts depends on what the step before decided."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from caw.decoding.capture.device_step import DeviceStep
from caw.decoding.capture.run_ahead import WORTH_CAPTURING, Results, Rows, RunAhead, to_host
from caw.decoding.drafts.chained_step import ChainedStep
from caw.decoding.drafts.drafted_step import DraftedStep
from caw.decoding.sequence import ActiveSequence


class DraftRounds(RunAhead):
    """Writes drafts, runs the step, reads what it decided.

    A text has no draft in its first step: what it begins with is known only to the device.
    """

    def _make_step(self) -> DeviceStep:
        assert isinstance(self.fixed_step, ChainedStep)
        self.drafted = DraftedStep(self.fixed_step, self.state, self.cache, self.ring)
        self.before: Rows = []  # the sequences of the step before, for which `roots` is known
        self.roots: Sequence[int] = []
        return self.drafted

    @property
    def _results(self) -> int:
        assert isinstance(self.fixed_step, ChainedStep)
        return 1 + self.fixed_step.drafts

    def advance(self, rows: Rows) -> Results:
        """What one step decided, token by token, each with the sequences in the rows."""
        kept = list(rows)
        if self.batch != self.state.batch:
            self._finish(kept)
            self._prepare()
        remaining = max((row.remaining for row in kept if row is not None), default=0)
        drafted = self._draft(kept)
        worth = self.started + remaining >= WORTH_CAPTURING
        (self.captured if self.captured is not None and worth else self.step)()
        self.started += 1
        integers, floats, roots = (to_host(t) for t in (self.ring.integers, self.ring.floats, self.drafted.roots))
        if self.cuda:
            torch.cuda.current_stream(self.state.counts.device).synchronize()
        assert integers is not None and roots is not None
        results = self.ring.read(integers, floats, self._results)
        self.before, self.roots = kept, roots.tolist()
        self._count(kept, drafted, [result.emitted.tolist() for result in results])
        return [(result, kept) for result in results]

    def _draft(self, rows: Rows) -> list[int]:
        """Write the drafts of all rows; how many tokens each got."""
        self._finish(rows)
        chained = self.drafted.chained
        known = [self.roots[n] if n < len(self.before) and self.before[n] is row else -1 for n, row in enumerate(rows)]
        batch = sum(row is not None for row in rows)
        found = [
            chained.proposer.chain(row, [root], batch)[0].tokens if row is not None and root >= 0 else ()
            for row, root in zip(rows, known, strict=True)
        ]
        padded = [[*tokens, *[-1] * (chained.drafts - len(tokens))] for tokens in found]
        self.drafted.guesses.copy_(torch.tensor(padded, dtype=torch.int64))
        return [len(tokens) for tokens in found]

    def _count(self, rows: Rows, drafted: Sequence[int], emitted: Sequence[Sequence[bool]]) -> None:
        """Note in the traces what this step carried and what was right."""
        for number, row in enumerate(rows):
            if isinstance(row, ActiveSequence) and row.trace.drafts is not None:
                row.trace.drafts.add(self.drafted.chained.width + drafted[number], drafted[number])
                row.trace.drafts.accepted += sum(result[number] for result in emitted[1:])

    def _finish(self, rows: Rows) -> None:
        """Texts of the step before that are in no row any more have ended."""
        for row in self.before:
            if row is not None and not any(row is other for other in rows):
                self.drafted.chained.proposer.finished(row)
        self.before = [row if any(row is other for other in rows) else None for row in self.before]

    def close(self) -> None:
        self._finish([])
        super().close()
