"""Many prompts through a fixed number of rows: a finished sequence's row is refilled while the others go on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from caw.decoding.capture.fixed_step import FixedStep
from caw.decoding.capture.kept_graphs import take
from caw.decoding.capture.run_ahead import RunAhead
from caw.decoding.drafts.draft_rounds import DraftRounds
from caw.decoding.drafts.start import make_step
from caw.decoding.eager_step import StepByStep
from caw.decoding.forward.attention import caw_attention
from caw.decoding.forward.small_linears import SmallLinears
from caw.decoding.model_lock import model_lock
from caw.decoding.plan import Plan
from caw.decoding.prefill import prefill
from caw.decoding.reading import read_again
from caw.decoding.request import Request
from caw.decoding.sequence import ActiveSequence
from caw.decoding.step_result import StepResult
from caw.decoding.waiting import Waiting
from caw.decoding.working_memory import make_cache, make_state
from caw.forking import survive_forks
from caw.models.eval_mode import EvalMode

StopCheck = Callable[[ActiveSequence], bool]  # called after each token; True ends the sequence
Row = ActiveSequence | None


class Decoder:
    """Decodes prompts with one model by one plan; runs once.

    Args:
        model: a transformers causal LM; it uses this library's attention, and is in eval mode, only while `run`
            computes.
        report: called with what is being prepared, "" when that is done.
        waiting: where requests wait; None = a queue of its own.
    """

    def __init__(
        self, model: Any, plan: Plan, report: Callable[[str], None] | None = None, waiting: Waiting | None = None
    ) -> None:
        self.model, self.plan, self.report = model, plan, report
        self.waiting = Waiting(plan) if waiting is None else waiting  # an empty one is false
        facts = plan.facts
        if plan.prompt_cache is not None:
            plan.prompt_cache.bind(model, facts.device, plan.spare_memory)
        self.lock, self.attention = model_lock(model), caw_attention(model)
        self.mode = contextlib.nullcontext() if plan.keep_mode else EvalMode(model)
        with self.lock, self.mode:  # a step of another thread has its own functions in the model's layers
            linears = SmallLinears.kept if plan.settings.compile else SmallLinears
            self.linears = linears(model, enabled=plan.kernels.native, places=plan.capacity)
            self.step, self.undrafted = make_step(model, plan)
        self.kept = take(model, plan)
        self.cache = make_cache(plan, self.step.beside, self.kept)
        self.state = make_state(plan) if self.kept is None else self.kept.state
        self.rows: list[Row] = [None] * plan.batch

    def run(self, requests: Sequence[Request], on_token: StopCheck | None = None) -> Iterator[ActiveSequence]:
        """Decode every request; yields sequences as they finish. More may join meanwhile: `waiting.add`.

        Raises ValueError at once for a request that the plan does not allow or with a key that the watermark cannot
        have, and RuntimeError if the model was given another dtype or device between plan and first result.
        """
        for request in requests:
            self.waiting.add(request)
        return self._run(on_token)

    @torch.inference_mode()
    def _run(self, on_token: StopCheck | None) -> Iterator[ActiveSequence]:
        self.plan.facts.check_unchanged(self.model)
        survive_forks()
        self.waiting.begin()
        steps = self.steps()
        try:
            while self.waiting.more(idle=all(row is None for row in self.rows)):
                with self.lock, self._on_device(), self.mode, self.attention, self.linears:
                    self._refill()
                    self._read_again()
                    results = steps.advance(self.rows)
                for result, rows in results:
                    yield from self._collect(result, rows, on_token)
                remaining = max((row.remaining for row in self.rows if row is not None), default=0)
                if not self.waiting and not self.plan.keep_rows and steps.may_shrink(remaining):
                    self._shrink()
            steps.keep()
        finally:
            steps.close()
            self._release()

    def steps(self) -> StepByStep | RunAhead:
        """Who calls the step."""
        if isinstance(self.step, FixedStep):
            rounds = DraftRounds if self.plan.drafts else RunAhead
            return rounds(self.step, self.state, self.cache, self.report, self.kept)
        return self.step.caller(self.state, self.cache, lambda: bool(self.waiting) or self.plan.keep_rows)

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Kernels are launched on the current device, which need not be the model's."""
        device = self.plan.facts.device
        return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()

    def _refill(self) -> None:
        """Prefill waiting prompts into empty rows."""
        plan, facts = self.plan, self.plan.facts
        free = [number for number, row in enumerate(self.rows) if row is None]
        next_ones = self.waiting.take(len(free))
        if not next_ones:
            return
        free, (indices, chosen) = free[: len(next_ones)], zip(*next_ones, strict=True)
        prompts, settings = [request.ids for request in chosen], [request.row for request in chosen]
        logits, records = prefill(
            self.model, self.cache, free, prompts, plan.history, self.waiting.shared, plan.prompt_cache,
            whole=plan.limit is not None,
        )  # fmt: skip
        places = torch.tensor(free, device=facts.device)
        streams = torch.tensor([request.stream for request in chosen], device=facts.device)
        budgets = torch.tensor([request.budget for request in chosen], device=facts.device)
        ends = [row.ends_of(facts.ends, facts.vocab_size) for row in settings]
        self.state.start(places, logits, records, streams, budgets)
        self.state.rows.start(places, settings, ends, [self.waiting.marks.under(row.key) for row in settings])
        if plan.watermark is not None and plan.watermark.reads_prompt:
            self.state.set_prompts(places, prompts)
        for number, *row in zip(free, indices, chosen, ends, strict=True):
            self.rows[number] = ActiveSequence(*row).counting(self.undrafted)

    def _read_again(self) -> None:
        """Where the next token crosses the limit of the rotary embedding, compute all keys and values again."""
        for number, row in enumerate(self.rows if self.plan.limit is not None else ()):
            if row is not None and len(row.request.ids) + len(row.tokens) == self.plan.limit:
                read_again(self.model, self.cache, number, [*row.request.ids, *row.tokens])

    def _collect(self, result: StepResult, rows: Sequence[Row], on_token: StopCheck | None) -> Iterator[ActiveSequence]:
        """Hand a step's tokens to the sequences that were in the rows then; free the rows of those that ended."""
        emitted, tokens, broken = result.emitted.tolist(), result.tokens.tolist(), result.broken.tolist()
        trace = result.token_trace() if self.plan.settings.return_trace else None
        for number, sequence in enumerate(rows):
            if sequence is None or sequence.finish_reason:
                continue
            if broken[number]:
                sequence.fail(self._not_finite(len(sequence.tokens) + 1))
            elif emitted[number]:
                sequence.add(tokens[number], trace(number) if trace else None)
                if result.log_probs is not None and sequence.request.row.log_probs:
                    sequence.log_probs.append(result.log_probs.of_row(number))
                if on_token is not None and on_token(sequence):
                    sequence.stop()
            if sequence.finish_reason:
                self._free(sequence)
                yield sequence

    def _not_finite(self, token: int) -> str:
        dtype = self.plan.facts.dtype
        remedy = "check its weights" if dtype == torch.float32 else "load it with dtype='float32'"
        kind = str(dtype).removeprefix("torch.")
        return f"expected finite logits from the {kind} model, got NaN or infinity at new token {token}; {remedy}"

    def _free(self, sequence: ActiveSequence) -> None:
        """Empty the row that the sequence is in now."""
        number = next(number for number, row in enumerate(self.rows) if row is sequence)
        self.rows[number] = None
        self.state.active[number] = False
        self.cache.lengths[number] = 0  # an empty row reads no prefix

    def _shrink(self) -> None:
        """With nothing left to refill, drop empty rows once they are half of all: they cost as much as others."""
        used = [number for number, row in enumerate(self.rows) if row is not None]
        if used and 2 * len(used) <= len(self.rows):
            places = torch.tensor(used, device=self.plan.facts.device)
            self.state.keep(places)
            self.cache.keep(places)
            self.rows = [self.rows[number] for number in used]

    def _release(self) -> None:
        """Give back what decoding held."""
        self.cache.release()
        self.rows = []
        self.state = self.state.released()
