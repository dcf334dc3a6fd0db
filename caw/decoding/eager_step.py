"""Steps that read a few numbers back from the device and skip work that would change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from caw.decoding.forward.branching import forward_all, forward_packed
from caw.decoding.forward.fused_layers import on_gpu
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.state import DecodeState
from caw.decoding.step import Step
from caw.decoding.trace import StepResult
from caw.ladder import Ladder, Shortlist, likeliest_first
from caw.record import Record


class EagerStep(Step):
    """Forward only candidates that some strength can reach; make a second record only where the choice differs."""

    def shortlist(self, ladder: Ladder, counts: torch.Tensor) -> Shortlist:
        watermark = self.choosing.watermark
        if watermark is None or not watermark.repeats_candidates:
            return super().shortlist(ladder, counts)
        return likeliest_first(ladder, counts, self.choosing.max_strength)

    def most_candidates(self, found: Shortlist) -> int:
        return int(torch.where(self.choosing.texts.active, found.counts, 1).max())

    def forward(
        self, state: DecodeState, cache: SiblingCache, candidates: torch.Tensor, counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # kernels of a GPU read the lengths themselves, and are compiled for some sizes of the cache: one will do
        whole = self.choosing.kernels.native and on_gpu(cache.lengths)
        limit = cache.capacity if whole else int(cache.lengths.max())
        if cache.packs and self.settings.branching == "tree":
            # leave out finished sequences, and candidates that no strength can reach
            counts = torch.where(self.choosing.texts.active, counts, 0)
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
        """Commit candidate chosen[b] (int64 [B]) to the cache where moved (bool [B])."""
        cache.commit(chosen, moved)

    def caller(self, state: DecodeState, cache: SiblingCache) -> StepByStep:
        """Make the caller of this step."""
        return StepByStep(self, state, cache)


class StepByStep:
    """Call the step once at a time; each result is available immediately."""

    def __init__(self, step: EagerStep, state: DecodeState, cache: SiblingCache) -> None:
        self.step, self.state, self.cache = step, state, cache

    def may_shrink(self, remaining: int) -> bool:
        """Tell whether a smaller batch pays when `remaining` steps are left."""
        return True

    def advance(self, rows: Sequence[Any]) -> Iterable[tuple[StepResult, Sequence[Any]]]:
        """Run, and return the results of newly finished steps with the texts in the rows when each started."""
        return [(self.step.decode(self.state, self.cache), list(rows))]

    def close(self) -> None:
        return

    def keep(self) -> None:
        return
