"""Steps that read nothing back from the device and do the same work every time, whatever lengths and candidates are."""

from __future__ import annotations

from typing import Any

import torch

from caw.decoding.capture.output_ring import OutputRing
from caw.decoding.forward.branching import forward_candidates
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.plan import Plan
from caw.decoding.sampling import GumbelNoise
from caw.decoding.state import DecodeState
from caw.decoding.step import Step
from caw.record import Record
from caw.triton_kernels.ladder_ref import Ladder
from caw.watermarks import Position

# of one model in one process, one for each batch, number of slots and size of the cache; torch gives up after eight
COMPILED = 1000


class FixedStep(Step):
    """Carries as many candidates as the ladder can have rungs, and reads every record that could differ.

    body: the model as torch.compile makes it, if it does. ring: where results go, set by whoever calls the step.
    """

    def __init__(self, model: Any, plan: Plan) -> None:
        super().__init__(model, plan)
        if self.watermark is not None:
            self.watermark = self.watermark.placed(plan.facts.device)
        # one graph without a gap or an error: a gap would read back
        self.body = torch.compile(model, fullgraph=True, dynamic=False) if plan.settings.compile else None
        self.ring: OutputRing | None = None

    @property
    def rungs(self) -> int:
        """M, how wide the ladders are."""
        return 1 if self.watermark is None else self.watermark.rungs(self.max_strength)

    def worth_doing(self, rows: torch.Tensor) -> bool:
        return True

    def perturbed(self, noise: GumbelNoise, state: DecodeState, warped: torch.Tensor) -> torch.Tensor:
        scores = warped + noise(state.rows.noise_keys, state.streams, state.counts, warped.shape[1])
        return torch.where(state.rows.sampled[:, None], scores, warped) if self.limits.greedy else scores

    def watermark_ladder(self, state: DecodeState, position: Position) -> Ladder:
        assert self.watermark is not None
        return self.watermark.fixed_ladder(position, self.max_strength)

    def most_candidates(self, state: DecodeState, ladder: Ladder, counts: torch.Tensor) -> int:
        return ladder.candidates.shape[1]

    def forward(
        self, state: DecodeState, cache: SiblingCache, candidates: torch.Tensor, counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.logits(cache, candidates)
        batch, width = candidates.shape
        return logits, torch.arange(batch, device=logits.device) * width

    def logits(self, cache: SiblingCache, candidates: torch.Tensor) -> torch.Tensor:
        """[B * Q, V] in the model's dtype, of candidates [B, Q]; rows with fewer carry their original again."""
        branching, places = self.settings.branching, cache.capacity
        if self.body is None:
            return forward_candidates(self.model, cache, candidates, branching, places).flatten(0, 1)
        with torch._dynamo.config.patch(recompile_limit=COMPILED, accumulated_recompile_limit=COMPILED):
            return forward_candidates(self.body, cache, candidates, branching, places).flatten(0, 1)

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
        # in half precision a record takes half the bytes and rounds of bisection, and has the same bits
        following = following if logits.shape[0] == chosen.shape[0] else self.record(logits, first + chosen)
        logits = logits.float()
        by_sequence = logits.view(chosen.shape[0], -1, logits.shape[1])
        if cache.copies == 1:
            cache.commit_step(chosen, moved, state.logits, by_sequence, state.records, following.tensors)
            return
        cache.commit(chosen, moved)
        state.advance(moved, logits[first + chosen], following)
