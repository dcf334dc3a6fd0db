"""Decode many prompts in a fixed number of rows: a finished text's row is refilled while the others continue."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from caw.decoding.capture.fixed_step import FixedStep
from caw.decoding.capture.graph_pool import claim, make_cache
from caw.decoding.capture.run_ahead import RunAhead
from caw.decoding.choosing import texts_of
from caw.decoding.eager_step import EagerStep
from caw.decoding.forward.attention import caw_attention
from caw.decoding.forward.fused_forwards import FusedForwards
from caw.decoding.plan import Plan
from caw.decoding.portions import Portions
from caw.decoding.prefill import prefill
from caw.decoding.reading import read_again
from caw.decoding.request import ActiveSequence, Request
from caw.decoding.state import DecodeState
from caw.decoding.steps import make_step
from caw.decoding.trace import StepResult
from caw.decoding.waiting import Waiting
from caw.forking import survive_forks
from caw.models.eval_mode import EvalMode, model_lock
from caw.models.parts import ModelParts
from caw.policies.base import refusal
from caw.record import Record

StopCheck = Callable[[ActiveSequence], bool]  # called after each token; True ends the sequence
Row = ActiveSequence | None


class Decoder:
    """Decode prompts with one model by one plan. Runs once.

    Args:
        model: a transformers causal LM; it uses this library's attention, and is in eval mode, only while `run`
            computes.
        report: called with the name of what is being prepared, and with "" when that is done.
        waiting: queue of requests; None = its own.
    """

    def __init__(
        self, model: Any, plan: Plan, report: Callable[[str], None] | None = None, waiting: Waiting | None = None
    ) -> None:
        self.model, self.plan, self.report = model, plan, report
        self.waiting = Waiting(plan) if waiting is None else waiting  # an empty one is false
        facts = plan.facts
        if plan.prompt_cache is not None:
            plan.prompt_cache.bind(model, facts.device, plan.spare_memory)
        parts = ModelParts.of(model)
        self.lock, self.attention = model_lock(model), caw_attention(model, parts.below)
        self.mode = contextlib.nullcontext() if plan.keep_mode else EvalMode(model, parts.below)
        self.memory = memory = claim(model, plan)
        room = min(plan.limits.max_new_tokens, plan.capacity)  # a generous maximum costs no memory
        texts = texts_of(plan, room) if memory is None else memory.texts
        with self.lock, self.mode:  # a step of another thread has its own functions in the model's layers
            compiled, native = plan.settings.compile, plan.kernels.native
            places = None if compiled or (facts.device.type == "cpu" and not facts.spread) else plan.capacity
            self.linears = FusedForwards.of(model, enabled=native, compiled=compiled, places=places)
            self.step, self.undrafted = make_step(model, plan, texts)
        self.choosing, self.cache = self.step.choosing, make_cache(plan, self.step.beside, memory)
        empty = plan.batch, facts.vocab_size, plan.history, facts.device
        self.state = DecodeState.empty(*empty) if memory is None else memory.state
        self.rows: list[Row] = [None] * plan.batch
        self.portions, self.portioned = Portions(plan), plan.portioned

    def run(self, requests: Sequence[Request], on_token: StopCheck | None = None) -> Iterator[ActiveSequence]:
        """Decode every request and yield texts as they finish. More may join meanwhile: `waiting.add`.

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
            while self.waiting.more(idle=not self.busy and not self.portions):
                with self.lock, self._on_device(), self.mode, self.attention, self.linears:
                    self._refill()
                    self._read_on()
                    self._read_again()
                    results: Iterable[tuple[StepResult, Sequence[Row]]] = ()
                    if self.busy:  # texts that are only read may be all there is
                        with self.portions.timing_step():
                            results = steps.advance(self.rows)
                yield from self._without_steps()
                for result, rows in results:
                    yield from self._collect(result, rows, on_token)
                remaining = max((row.remaining for row in self.rows if row is not None), default=0)
                if not self.waiting and not self.plan.keep_rows and steps.may_shrink(remaining):
                    self._shrink()
            steps.keep()
        finally:
            steps.close()
            self._release()

    def steps(self) -> EagerStep | RunAhead:
        """Return what runs the steps: one at a time, or rounds of captured ones."""
        if isinstance(self.step, FixedStep):
            return RunAhead(self.step, self.state, self.cache, self.report, self.memory)
        return self.step.over(self.state, self.cache)

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Make the model's device the current one, on which kernels are launched."""
        device = self.plan.facts.device
        return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()

    @property
    def busy(self) -> bool:
        return any(row is not None for row in self.rows)

    def _refill(self) -> None:
        taken = self.portions.rows
        free = [number for number, row in enumerate(self.rows) if row is None and number not in taken]
        next_ones = self.waiting.take(len(free))
        if next_ones:
            self._fill(free[: len(next_ones)], next_ones)

    def _fill(self, numbers: Sequence[int], pairs: Sequence[tuple[int, Request]]) -> None:
        """Prefill prompts into these empty rows; pairs: the number and the request of each."""
        if self.portioned and not self.waiting.shared:
            numbers, pairs = self.portions.take(numbers, pairs, busy=self.busy)
        if not pairs:
            return
        plan, prompts = self.plan, [request.known for _, request in pairs]
        with self.portions.timing_prefill(prompts):
            logits, records = prefill(
                self.model, self.cache, numbers, prompts, plan.history, self.waiting.shared, plan.prompt_cache,
                whole=plan.limit is not None,
            )  # fmt: skip
        self._begin(numbers, pairs, logits, records)

    def _read_on(self) -> None:
        """Read a portion of the prompts that have begun."""
        self.portions.drop(self.waiting.gone, self.cache)
        ended = self.portions.read(self.model, self.cache, busy=self.busy) if self.portions else ()
        for row, pair, logits, records in ended:
            self._begin([row], [pair], logits, records)

    def _begin(
        self, numbers: Sequence[int], pairs: Sequence[tuple[int, Request]], logits: torch.Tensor,
        records: Sequence[Record],
    ) -> None:  # fmt: skip
        """Begin texts whose prompts are in these rows: logits [R, V] of the first new position, records from there
        back."""
        facts, (indices, chosen) = self.plan.facts, zip(*pairs, strict=True)
        places = torch.tensor(numbers, device=facts.device)
        ends = [request.row.ends_of(facts.ends, facts.vocab_size) for request in chosen]
        self.state.start(places, logits, records)
        self.choosing.start(numbers, chosen, ends)
        for number, *row in zip(numbers, indices, chosen, ends, strict=True):
            self.rows[number] = ActiveSequence(*row).counting(self.undrafted)

    def _without_steps(self) -> Iterable[ActiveSequence]:
        """Texts that ended without a step; here there are none."""
        return ()

    def _read_again(self) -> None:
        """Recompute all keys and values where the next token crosses the limit of the rotary embedding."""
        for number, row in enumerate(self.rows if self.plan.limit is not None else ()):
            if row is not None and len(row.request.ids) + len(row.tokens) == self.plan.limit:
                read_again(self.model, self.cache, number, [*row.request.ids, *row.tokens])

    def _collect(self, result: StepResult, rows: Sequence[Row], on_token: StopCheck | None) -> Iterator[ActiveSequence]:
        """Append a step's tokens to the texts that were in the rows then, and free the rows of those that ended."""
        emitted, tokens, broken = result.emitted.tolist(), result.tokens.tolist(), result.broken.tolist()
        trace = result.token_trace() if self.plan.settings.return_trace else None
        for number, sequence in enumerate(rows):
            if sequence is None or sequence.finish_reason:
                continue
            if broken[number]:
                sequence.fail(self._why_broken(sequence))
            elif emitted[number]:
                sequence.add(tokens[number], trace(number) if trace else None)
                if result.log_probs is not None and sequence.request.row.log_probs:
                    sequence.log_probs.append(result.log_probs.of_row(number))
                if on_token is not None and on_token(sequence):
                    sequence.stop()
            if sequence.finish_reason:
                place = self._place(sequence)
                sequence.open, sequence.free, sequence.spent = self.choosing.texts.counts_of(place)
                self._free(place, sequence)
                yield sequence

    def _why_broken(self, sequence: ActiveSequence) -> str:
        strength, where = float(self.choosing.texts.refused[self._place(sequence)]), len(sequence.tokens) + 1
        if strength != 0:  # NaN too
            return refusal(self.plan.policy, strength, f" at new token {where}")
        return self.plan.facts.broken_logits(where)

    def _place(self, sequence: ActiveSequence) -> int:
        return next(number for number, row in enumerate(self.rows) if row is sequence)

    def _free(self, number: int, sequence: ActiveSequence) -> None:
        self.rows[number] = None
        self.choosing.texts.active[number] = False
        self.cache.lengths[number] = 0  # an empty row reads no prefix

    def _shrink(self) -> None:
        """Once no requests wait, drop empty rows when they are half of all: they cost as much as others."""
        used = [number for number, row in enumerate(self.rows) if row is not None]
        if used and 2 * len(used) <= len(self.rows):
            places = torch.tensor(used, device=self.plan.facts.device)
            self.choosing.texts.keep(places)
            self.state.keep(places)
            self.cache.keep(places)
            self.rows = [self.rows[number] for number in used]

    def _release(self) -> None:
        self.cache.release()
        self.rows = []
        self.state = DecodeState.empty(0, 0, 0, self.plan.facts.device)
        self.choosing.texts = texts_of(self.plan, 0, rows=0)
