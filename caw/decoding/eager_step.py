"""Steps that read a few numbers back from the device and leave out what would change nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from caw.decoding.forward.branching import forward_all, forward_packed
from caw.decoding.forward.fused_layers import on_gpu
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.plan import Plan
from caw.decoding.row_marks import ladder_of_each
from caw.decoding.sampling import GumbelNoise
from caw.decoding.state import DecodeState
from caw.decoding.step import Step
from caw.decoding.step_result import StepResult
from caw.decoding.warping import Warping
from caw.record import Record
from caw.triton_kernels.ladder_ref import Ladder
from caw.watermarks import Position


class EagerStep(Step):
    """Carries only candidates that some strength can reach, and reads a second record only where the choice differs.

    Only rows that sample draw, and only those that want it are cut to top-k and top-p.
    """

    def __init__(self, model: Any, plan: Plan) -> None:
        own = dataclasses.replace(plan.warper, sparse=True) if isinstance(plan.warper, Warping) else plan.warper
        super().__init__(model, dataclasses.replace(plan, warper=own))

    def worth_doing(self, rows: torch.Tensor) -> bool:
        return bool(rows.any())

    def perturbed(self, noise: GumbelNoise, state: DecodeState, warped: torch.Tensor) -> torch.Tensor:
        rows = state.rows
        some = (rows.sampled & state.active).nonzero()[:, 0]
        if not some.numel():
            return warped
        draws = noise(rows.noise_keys[some], state.streams[some], state.counts[some], warped.shape[1])
        return warped.index_add(0, some, draws)

    def watermark_ladder(self, state: DecodeState, position: Position) -> Ladder:
        assert self.watermark is not None
        if self.watermark.native is not None and self.kernels.native:
            return self.watermark.native_ladder(position, self.max_strength)
        if not self.limits.keys:
            return self.watermark.ladder(position, self.max_strength)
        return ladder_of_each([mark or self.watermark for mark in state.rows.marks], position, self.max_strength)

    def most_candidates(self, state: DecodeState, ladder: Ladder, counts: torch.Tensor) -> int:
        return int(torch.where(state.active, counts, 1).max())

    def forward(
        self, state: DecodeState, cache: SiblingCache, candidates: torch.Tensor, counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # kernels of a GPU read the lengths themselves, and are compiled for some sizes of the cache: one will do
        whole = self.kernels.native and on_gpu(cache.lengths)
        limit = cache.capacity if whole else int(cache.lengths.max())
        if cache.packs and self.settings.branching == "tree":
            # leave out finished sequences, and candidates that no strength can reach
            counts = torch.where(state.active, counts, 0)
            if 0 < int(counts.sum()) < candidates.numel():
                return forward_packed(self.model, cache, candidates, counts, limit)
        return forward_all(self.model, cache, candidates, self.settings.branching, limit)

    def commit(
        self,
        state: DecodeState,
        cache: SiblingCache,
        logits: torch.Tensor,
        first: torch.Tensor,
        following: Record,
        chosen: torch.Tensor,
        moved: torch.Tensor,
    ) -> None:
        changed = (chosen > 0).nonzero()[:, 0]
        if changed.numel():
            following.write(changed, self.record(logits, (first + chosen)[changed]))
        self.join(cache, chosen, moved)
        places, rows = moved.nonzero()[:, 0], first + chosen
        if places.numel() < moved.numel():
            state.advance_some(places, logits, rows[places], following)
        else:
            state.advance_all(logits, rows, following)

    def join(self, cache: SiblingCache, chosen: torch.Tensor, moved: torch.Tensor) -> None:
        """Candidate chosen[b] (int64 [B]) joins the cache where moved (bool [B])."""
        cache.commit(chosen, moved)

    def caller(self, state: DecodeState, cache: SiblingCache, followed: Callable[[], bool]) -> StepByStep:
        """What calls this step; followed: whether other texts wait for a place in the batch now."""
        return StepByStep(self, state, cache)


class StepByStep:
    """Calls the step once at a time; each result is there at once."""

    def __init__(self, step: EagerStep, state: DecodeState, cache: SiblingCache) -> None:
        self.step, self.state, self.cache = step, state, cache

    def may_shrink(self, remaining: int) -> bool:
        """Whether a smaller batch pays when `remaining` steps are to come."""
        return True

    def advance(self, rows: Sequence[Any]) -> Iterable[tuple[StepResult, Sequence[Any]]]:
        """Results of newly finished steps, each with the sequences that were in the rows when it started."""
        return [(self.step.take(self.state, self.cache), list(rows))]

    def close(self) -> None:
        return

    def keep(self) -> None:
        return
