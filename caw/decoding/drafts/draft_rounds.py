"""Run captured steps with drafts, one at a time: each draft depends on what the step before decided."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from caw.decoding.capture.fixed_step import DeviceStep
from caw.decoding.capture.output_ring import OutputRing
from caw.decoding.capture.run_ahead import WORTH_CAPTURING, Results, Rows, RunAhead, to_host
from caw.decoding.drafts.chained_step import ChainedStep
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.sequence import ActiveSequence
from caw.decoding.state import DecodeState
from caw.decoding.texts import Texts


class DraftRounds(RunAhead):
    """Write drafts, run the step, read what it decided.

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
        """Run one step; return its results token by token, with the texts in the rows."""
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
            torch.cuda.current_stream(self.state.pending.device).synchronize()
        assert integers is not None and roots is not None
        results = self.ring.read(integers, floats, self._results)
        self.before, self.roots = kept, roots.tolist()
        self._count(kept, drafted, [result.emitted.tolist() for result in results])
        return [(result, kept) for result in results]

    def _draft(self, rows: Rows) -> list[int]:
        """Write the drafts of all rows; return the number of tokens of each."""
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
        """Count in the traces what this step carried and what was accepted."""
        for number, row in enumerate(rows):
            if isinstance(row, ActiveSequence) and row.trace.drafts is not None:
                row.trace.drafts.add(self.drafted.chained.width + drafted[number], drafted[number])
                row.trace.drafts.accepted += sum(result[number] for result in emitted[1:])

    def _finish(self, rows: Rows) -> None:
        """Tell the proposer which texts of the step before have ended."""
        for row in self.before:
            if row is not None and not any(row is other for other in rows):
                self.drafted.chained.proposer.finished(row)
        self.before = [row if any(row is other for other in rows) else None for row in self.before]

    def close(self) -> None:
        self._finish([])
        super().close()


class DraftedStep(DeviceStep):
    """A whole step without the host that decides several tokens: the first, and one more for each draft that was right.

        forward   candidates of position i, and behind the first one the drafts of i + 1, i + 2, …
        decide    the token of position i, as in a step without drafts
        for each draft, where the text has come to it: is it the next token? then decide with what is behind it
        look      at the token that comes next, behind which the host looks up the next drafts

    The number of decisions is fixed; rows whose draft was wrong rest through the remaining ones. Each decision runs the
    code of a step without drafts. Its numbers are the same except for rounding: a GPU reads a draft's ancestors at the
    end of its row, not at their places in the prefix, so a near tie may fall the other way.

    A call leaves 1 + drafts results in `ring`, in order.

    guesses: int64 [B, drafts], what the host drafted, -1 = nothing; read by each call. roots: int64 [B], after a call
    the token that the next one begins with: its candidate 0.
    """

    def __init__(self, step: ChainedStep, state: DecodeState, cache: SiblingCache, ring: OutputRing) -> None:
        super().__init__(step, state, cache, ring)
        self.chained, shape = step, (state.batch, step.drafts)
        self.guesses = step.guesses = torch.full(shape, -1, dtype=torch.int64, device=state.pending.device)
        self.roots = torch.full_like(state.pending, -1)

    def __call__(self) -> None:
        step, state, texts = self.chained, self.state, self.chained.choosing.texts
        step.forget()  # what a call that failed had peeked at
        waiting = state.pending >= 0
        result = self.decide()
        forwarded = self.ring.forwarded
        goes_on = result.emitted
        if step.plan.looks_ahead:  # the chain stands behind the original token, or the one that waited
            goes_on = goes_on & (waiting | (result.choice == 0))
        for draft in range(step.drafts):
            right = goes_on & texts.active & (step.peek(state) == self.guesses[:, draft])
            with step.behind(self.cache, draft), _only(texts, state, self.cache, right):
                goes_on = self.decide().emitted
        self.roots.copy_(torch.where(state.pending >= 0, state.pending, step.peek(state)))
        step.forget()
        self.ring.forwarded = forwarded  # all results are of the one forward that the first decision made


@contextlib.contextmanager
def _only(texts: Texts, state: DecodeState, cache: SiblingCache, rows: torch.Tensor) -> Iterator[None]:
    """Make only these rows (bool [B]) active inside the block; other rows keep what a step writes for all."""
    written = (state.pending, state.pending_strength, state.pending_capacity, cache.lengths)
    before, active = [tensor.clone() for tensor in written], texts.active
    texts.active = rows.clone()
    try:
        yield
        for tensor, old in zip(written, before, strict=True):
            torch.where(rows, tensor, old, out=tensor)
        active.logical_and_(texts.active | ~rows)
    finally:  # a capture that failed takes no other call, and its memory is gone with it
        texts.active = active
