"""Steps that read nothing back from the device and do the same work every time, whatever lengths and candidates are.

Every call makes the same tensor operations on the same addresses, so a CUDA graph can hold it and be replayed; results
go to a ring buffer. The tests run a `DeviceStep` under fake tensors and as a recorded replay.
"""

from dataclasses import dataclass
from typing import Any

import torch

from caw.decoding.forward.branching import forward_candidates
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.plan import Plan
from caw.decoding.state import DecodeState
from caw.decoding.step import Forwarded, Step
from caw.decoding.texts import Texts
from caw.decoding.trace import LogProbs, StepResult
from caw.ladder import Carried, Ladder
from caw.op_indices import BROKEN, NOT_EMITTED


@dataclass
class OutputRing:
    """Results of the last R steps of B sequences.

    integers: int64 [R, B, 1 or 3 + M, + N]: token (-1 = none emitted, -2 = logits that
        are not finite); with a trace also choice, counts and candidates; with log-probabilities the likeliest tokens.
    floats: float32 [R, B, 2 or 0, + 1 + N]: strength and capacity; log-probabilities; None without either.
    cursor: int64 [1], where the next step writes. trace: whether there is one. alternatives: N, 0 without
        log-probabilities. forwarded: of all results, as `StepResult` has it.
    """

    integers: torch.Tensor
    floats: torch.Tensor | None
    cursor: torch.Tensor
    trace: bool
    alternatives: int = 0
    forwarded: int = 0

    @classmethod
    def empty(
        cls, size: int, batch: int, rungs: int, trace: bool, device: torch.device, alternatives: int = 0
    ) -> "OutputRing":
        """R = size; rungs: M, the width of the ladders."""
        columns, numbers = (
            (3 + rungs if trace else 1) + alternatives,
            (2 if trace else 0) + (1 + alternatives if alternatives else 0),
        )
        return cls(
            integers=torch.full((size, batch, columns), NOT_EMITTED, dtype=torch.int64, device=device),
            floats=torch.zeros(size, batch, numbers, device=device) if numbers else None,
            cursor=torch.zeros(1, dtype=torch.int64, device=device),
            trace=trace,
            alternatives=alternatives,
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
            row, width, log_probs = integers[step], integers.shape[2] - self.alternatives, None
            tokens = row[:, 0]
            if floats is None or not self.trace:  # the rest was not asked for
                nothing = torch.zeros(tokens.shape)
                detail = (torch.zeros_like(tokens), tokens[:, None], torch.ones_like(tokens), nothing, nothing)
            else:
                detail = (row[:, 1], row[:, 3:width], row[:, 2], floats[step, :, 0], floats[step, :, 1])
            if self.alternatives and floats is not None:
                log_probs = LogProbs(row[:, width:], floats[step, :, -1 - self.alternatives :])
            results.append(StepResult(tokens >= 0, tokens, *detail, tokens == BROKEN, self.forwarded, log_probs))
        return results


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
