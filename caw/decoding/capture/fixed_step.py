"""Steps that read nothing back from the device and do the same work every time, whatever lengths and candidates are.

Every call makes the same tensor operations on the same addresses, so a CUDA graph can hold it and be replayed. The
tests run a `DeviceStep` under fake tensors and as a recorded replay.
"""

from typing import Any

import torch

from caw.decoding.capture.output_ring import OutputRing
from caw.decoding.forward.branching import forward_candidates
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.plan import Plan
from caw.decoding.state import DecodeState
from caw.decoding.step import Forwarded, Step
from caw.decoding.texts import Texts
from caw.decoding.trace import StepResult
from caw.ladder import Carried, Ladder

# of one model in one process, one for each batch, number of slots and size of the cache; torch gives up after eight
COMPILED = 1000


class FixedStep(Step):
    """Forward as many candidates as the ladder can have rungs, and make every record that could differ.

    body: the model as torch.compile makes it, if it does. ring: where results go, set by whoever calls the step.
    """

    def __init__(self, model: Any, plan: Plan, texts: Texts) -> None:
        super().__init__(model, plan, texts)
        # one graph without a gap or an error: a gap would read back
        self.body = torch.compile(model, fullgraph=True, dynamic=False) if plan.settings.compile else None
        self.ring: OutputRing | None = None

    def conclude(self, cache: SiblingCache, result: StepResult) -> None:
        """Deactivate texts that ended, and write the result to the ring."""
        texts = self.choosing.texts
        texts.finish(result.tokens, result.emitted)
        cache.lengths.masked_fill_(~texts.active, 0)  # a finished row reads no prefix
        assert self.ring is not None
        self.ring.write(result)

    def reachable(self, ladder: Ladder, counts: torch.Tensor) -> Carried:
        return Carried(ladder.candidates, counts)

    def logits(
        self, state: DecodeState, cache: SiblingCache, candidates: torch.Tensor, counts: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        logits = self.rectangle(cache, candidates)
        batch, width = candidates.shape
        return logits, torch.arange(batch, device=logits.device) * width

    def rectangle(self, cache: SiblingCache, candidates: torch.Tensor) -> torch.Tensor:
        """Compute logits [B * Q, V] in the model's dtype of candidates [B, Q]; shorter rows repeat their original."""
        if self.body is None:
            return forward_candidates(self.model, cache, candidates, "tree", cache.capacity).flatten(0, 1)
        with torch._dynamo.config.patch(recompile_limit=COMPILED, accumulated_recompile_limit=COMPILED):
            return forward_candidates(self.body, cache, candidates, "tree", cache.capacity).flatten(0, 1)

    def commit(
        self, state: DecodeState, cache: SiblingCache, forwarded: Forwarded, chosen: torch.Tensor, moved: torch.Tensor
    ) -> None:
        logits, first, following = forwarded
        assert first is not None
        # in half precision a record takes half the bytes and rounds of bisection, and has the same bits
        following = following if logits.shape[0] == chosen.shape[0] else self.record(logits, first + chosen)
        logits = logits.float()
        by_sequence = logits.view(chosen.shape[0], -1, logits.shape[1])
        cache.commit_step(chosen, moved, state.logits, by_sequence, state.records, following.tensors)


class DeviceStep:
    """Run one step of every active text; a call returns nothing and leaves its results in `ring`.

    Changes texts, state, cache and ring in place. A text rests from the step that ended it on, by an end token or by
    its budget; what else ends a text (stop strings) only the host knows, which sets `Texts.active`.
    """

    def __init__(self, step: FixedStep, state: DecodeState, cache: SiblingCache, ring: OutputRing) -> None:
        self.step, self.state, self.cache, self.ring = step, state, cache, ring
        step.ring = ring

    def __call__(self) -> None:
        self.step.conclude(self.cache, self.step.decode(self.state, self.cache))
