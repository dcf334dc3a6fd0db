"""A whole step without the host that decides several tokens: the first, and one more for each draft that was right.

    forward      candidates of position i, and behind the first one the drafts of i + 1, i + 2, …
    decide       the token of position i, as in a step without drafts
    for each draft, where the text has come to it: the next token is the draft? then decide with what is behind it
    look         at the token that comes next, behind which the host looks up the next drafts

How many decisions are made is fixed; rows whose draft was wrong rest through the others. Every decision is the code of
a step without drafts, on the same numbers but for rounding: a GPU reads a draft's ancestors at the end of its row and
not at their places in the prefix, so that a near tie may fall the other way there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from caw.decoding.capture.device_step import DeviceStep
from caw.decoding.capture.output_ring import OutputRing
from caw.decoding.drafts.chained_step import ChainedStep
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.state import DecodeState


class DraftedStep(DeviceStep):
    """A call leaves 1 + drafts results in `ring`, in order.

    guesses: int64 [B, drafts], what the host drafted, -1 = nothing; read by each call. roots: int64 [B], after a call
    the token that the next one begins with: its candidate 0.
    """

    def __init__(self, step: ChainedStep, state: DecodeState, cache: SiblingCache, ring: OutputRing) -> None:
        super().__init__(step, state, cache, ring)
        self.chained, shape = step, (state.batch, step.drafts)
        self.guesses = step.guesses = torch.full(shape, -1, dtype=torch.int64, device=state.counts.device)
        self.roots = torch.full_like(state.counts, -1)

    def __call__(self) -> None:
        step, state = self.chained, self.state
        step.forget()  # what a call that failed had peeked at
        waiting = state.pending >= 0
        result = self.decide()
        forwarded = self.ring.forwarded
        goes_on = result.emitted
        if step.plan.looks_ahead:  # the chain stands behind the original token, or the one that waited
            goes_on = goes_on & (waiting | (result.choice == 0))
        for draft in range(step.drafts):
            right = goes_on & state.active & (step.peek(state) == self.guesses[:, draft])
            with step.behind(self.cache, draft), _only(state, self.cache, right):
                goes_on = self.decide().emitted
        self.roots.copy_(torch.where(state.pending >= 0, state.pending, step.peek(state)))
        step.forget()
        self.ring.forwarded = forwarded  # all results are of the one forward that the first decision made


@contextlib.contextmanager
def _only(state: DecodeState, cache: SiblingCache, rows: torch.Tensor) -> Iterator[None]:
    """Inside the block only these rows (bool [B]) are active; what a step writes for all stays as it is elsewhere."""
    written = (state.pending, state.pending_strength, state.pending_capacity, cache.lengths)
    before, active = [tensor.clone() for tensor in written], state.active
    state.active = rows.clone()
    try:
        yield
        for tensor, old in zip(written, before, strict=True):
            torch.where(rows, tensor, old, out=tensor)
        active.logical_and_(state.active | ~rows)
    finally:  # a capture that failed takes no other call, and its memory is gone with it
        state.active = active
