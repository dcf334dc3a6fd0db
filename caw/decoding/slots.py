"""Many prompts through a fixed number of slots: a finished sequence's slot is refilled while the others go on."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from caw import ops
from caw.decoding.attention import caw_attention
from caw.decoding.eval_mode import EvalMode
from caw.decoding.kv_cache import SiblingCache
from caw.decoding.length_dependent import alone, outgrown
from caw.decoding.linear import SmallLinears
from caw.decoding.memory import memory_budget
from caw.decoding.model_lock import model_lock
from caw.decoding.needs import decoding_needs, fitting_batch
from caw.decoding.prefill import prefill, read_again, shared_beginning
from caw.decoding.prefill_attention import PrefillAttention, check_prefill_attention
from caw.decoding.prompt_cache import PromptCache, positions_back
from caw.decoding.rounds import Rounds, SingleSteps
from caw.decoding.sampling import GumbelNoise, make_warper, stream_ids
from caw.decoding.settings import MAX_SLOTS, DecodeSettings
from caw.decoding.spread_cache import SpreadCache, main_device
from caw.decoding.state import DecodeState
from caw.decoding.step import Stepper, StepResult
from caw.decoding.support import check_model
from caw.decoding.tensor_parallel import is_tensor_parallel, smallest
from caw.decoding.trace import SequenceTrace, TokenTrace
from caw.policies import CapacityPolicy, Policy
from caw.watermarks import Watermark

DEFAULT_EXP_SLOTS = 8  # distinct race winners beyond 8 of 20 are a 0.03 % event on near-flat lists

# called with (index of the prompt, its tokens so far) after each token; True ends the sequence
StopCheck = Callable[[int, list[int]], bool]


@dataclass(eq=False)
class ActiveSequence:
    """A sequence being decoded: which prompt, what came out, why it ended ("eos", "length", "stop", "error" or "").

    error: what was wrong, with no tokens; else empty.
    """

    index: int
    budget: int
    tokens: list[int] = field(default_factory=list)
    trace: SequenceTrace = field(default_factory=SequenceTrace)
    finish_reason: str = ""
    error: str = ""

    def fail(self, error: str) -> None:
        """End it without tokens."""
        self.finish_reason, self.error, self.tokens, self.trace = "error", error, [], SequenceTrace()

    @property
    def lacking(self) -> int:
        """Tokens it may still get."""
        return 0 if self.finish_reason else self.budget - len(self.tokens)


class Decoder:
    """Decodes prompts with one model, watermark and policy.

    Args:
        model: a transformers causal LM; it uses this library's attention, and is in eval mode, only while `run`
            computes.
        batch: slots of sequences; 1 where texts may outgrow the model's first rotary embedding (`outgrown`).
            capacity: tokens (prompt + new) a slot can hold.
        keep_rows: never drop empty slots, so that row b stays sequence b.
        kernels: implementation of the ops; None = as torch dispatches.
        max_memory, prefill_attention: see `caw.generate`; a batch that does not fit becomes a smaller one.
        compile: fixed steps run the model's body as torch.compile makes it.
        fixed: decode by steps that read nothing back from the device, captured in CUDA graphs where there is CUDA; None
            = on CUDA and with compile, if kernels, watermark and warper allow it.
        report: called with what is being prepared, "" when that is done.
        prompt_cache: prompts read before; it is given those that are read now.
        keep_mode: compute in the mode the model is in, with dropout if that is train mode.
    """

    def __init__(
        self,
        model: Any,
        watermark: Watermark | None,
        policy: Policy,
        settings: DecodeSettings,
        batch: int,
        capacity: int,
        keep_rows: bool = False,
        kernels: ops.Ops | None = None,
        max_memory: int | float | str | None = None,
        prefill_attention: PrefillAttention = "sdpa",
        compile: bool = False,
        fixed: bool | None = None,
        report: Callable[[str], None] | None = None,
        prompt_cache: PromptCache | None = None,
        keep_mode: bool = False,
    ) -> None:
        config = check_model(model)
        kernels = kernels or ops.dispatched()
        vocab_size = vocabulary_size(model)
        if watermark is not None:
            watermark = watermark.with_vocabulary(vocab_size)
            watermark.check_strength(policy.max_strength)
        spread, parallel = main_device(model), is_tensor_parallel(model)
        self.device, self.dtype = decoding_device(model), model.dtype
        check_prefill_attention(prefill_attention, self.device, model.dtype)
        if prompt_cache is not None and parallel:  # processes whose memory differs would keep different prompts
            raise ValueError("prompt_cache needs a model in one process, found one split over several; leave it out")
        self.limit = outgrown(model, capacity)
        if self.limit is not None:  # texts of other lengths would change each other
            prompt_cache, batch = None, alone(batch, self.limit, capacity, keep_rows)
        slots = candidate_slots(watermark, policy, settings)
        copies = slots if settings.branching == "batch" else 1
        self.history, self.prompt_cache = history_needed(policy), prompt_cache
        self.reach = positions_back(self.history, prompt_cache)
        budget = None
        if not keep_rows:  # there rows are the caller's
            needs = decoding_needs(config, model.dtype, vocab_size, capacity, slots, copies, self.reach, self.limit)
            unplanned = spread is not None and max_memory is None  # nothing says how the layers share the devices
            budget = None if unplanned else memory_budget(max_memory, self.device)
            batch = fitting_batch(batch, needs, budget)
            batch = smallest(batch, model, self.device) if parallel else batch
        if prompt_cache is not None:
            prompt_cache.bind(model, self.device, None if budget is None else budget - needs.of(batch))
        self.stepper = _stepper(model, watermark, policy, settings, slots, kernels, self.device)
        # no graph spans devices or processes, nor a rotary embedding that changes on the way
        self.fixed = False if spread is not None or parallel or self.limit is not None else fixed
        self.compile = compile
        if compile and not (self.fixed is not False and kernels.native and self.stepper.capturable):
            raise ValueError(
                "compile=True needs a model on one device, texts within its first rotary embedding, this library's "
                "kernels, and a watermark and sampler of its own, found another; leave compile out"
            )
        # a body compiled for one batch would be compiled anew, for a minute, where empty slots are dropped
        self.report, self.shared, self.keep_rows = report, 0, keep_rows or compile
        self.lock, self.attention = model_lock(model), caw_attention(model)
        self.mode = contextlib.nullcontext() if keep_mode else EvalMode(model)
        with self.mode:
            self.linears = SmallLinears(model, enabled=kernels.native)
        self.cache = (SiblingCache if spread is None else SpreadCache)(
            config.num_hidden_layers, batch, capacity, slots, self.device, copies, kernels, prefill_attention
        )
        window = watermark.window if watermark is not None else 0
        room = min(settings.max_new_tokens, capacity)  # a generous maximum costs no memory
        self.state = DecodeState.empty(batch, vocab_size, self.history, window, room, self.device)
        self.slots: list[ActiveSequence | None] = [None] * batch

    @property
    def settings(self) -> DecodeSettings:
        return self.stepper.settings

    @torch.inference_mode()
    def run(
        self,
        prompts: Sequence[Sequence[int]],
        budgets: Sequence[int],
        on_token: StopCheck | None = None,
    ) -> Iterator[ActiveSequence]:
        """Decode every prompt (non-empty id lists); yields sequences as they finish.

        budgets: most new tokens of each prompt.

        Raises RuntimeError if the model was given another dtype or device since this decoder was made.
        """
        self._check_unchanged()
        streams = stream_ids(prompts)
        self.shared = 0 if self.limit is not None else shared_beginning(prompts, self.reach)
        waiting = deque(range(len(prompts)))
        steps = self._steps()
        try:
            while True:
                with self.lock, self._on_device(), self.mode, self.attention, self.linears:
                    self._refill(waiting, prompts, budgets, streams)
                    if all(slot is None for slot in self.slots):
                        return
                    self._read_again(prompts)
                    results = steps.advance(self.slots)
                for result, slots in results:
                    yield from self._collect(result, slots, on_token)
                lacking = max((slot.lacking for slot in self.slots if slot is not None), default=0)
                if not waiting and not self.keep_rows and steps.may_shrink(lacking):
                    self._shrink()
        finally:
            steps.close()
            self._release()

    def _check_unchanged(self) -> None:
        model = self.stepper.model
        device = decoding_device(model)
        if (model.dtype, device) != (self.dtype, self.device):
            raise RuntimeError(
                f"expected the model as it was when generation was asked for ({self.dtype} on {self.device}), found "
                f"{model.dtype} on {device}; ask again"
            )

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Kernels are launched on the current device, which need not be the model's."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()

    def _steps(self) -> SingleSteps | Rounds:
        """Captured steps where there is CUDA and nothing in a step needs the host."""
        by_itself = (self.device.type == "cuda" or self.compile) and self.stepper.kernels.native
        if (by_itself if self.fixed is None else self.fixed) and self.stepper.capturable:
            if self.compile:  # one graph without a gap or an error: a gap would read back
                self.stepper.body = torch.compile(self.stepper.model, fullgraph=True, dynamic=False)
            return Rounds(self.stepper, self.state, self.cache, self.report)
        return SingleSteps(self.stepper, self.state, self.cache)

    def _refill(
        self,
        waiting: deque[int],
        prompts: Sequence[Sequence[int]],
        budgets: Sequence[int],
        streams: Sequence[tuple[int, int]],
    ) -> None:
        free = [row for row, slot in enumerate(self.slots) if slot is None][: len(waiting)]
        if not free:
            return
        chosen = [waiting.popleft() for _ in free]
        logits, records = prefill(
            self.stepper.model, self.cache, free, [prompts[i] for i in chosen], self.history, self.shared,
            self.prompt_cache, whole=self.limit is not None,
        )  # fmt: skip
        rows = torch.tensor(free, device=self.device)
        seeds, most = ([column[i] for i in chosen] for column in (streams, budgets))
        self.state.start(
            rows, logits, records, torch.tensor(seeds, device=self.device), torch.tensor(most, device=self.device)
        )
        if self.stepper.watermark is not None and self.stepper.watermark.reads_prompt:
            self.state.set_prompts(rows, [prompts[i] for i in chosen])
        for row, index in zip(free, chosen, strict=True):
            self.slots[row] = ActiveSequence(index, budgets[index])

    def _read_again(self, prompts: Sequence[Sequence[int]]) -> None:
        """Where the next token outgrows the first rotary embedding, everything before it has to be turned anew."""
        for row, slot in enumerate(self.slots if self.limit is not None else ()):
            if slot is not None and len(prompts[slot.index]) + len(slot.tokens) == self.limit:
                read_again(self.stepper.model, self.cache, row, [*prompts[slot.index], *slot.tokens])

    def _collect(
        self, result: StepResult, slots: Sequence[ActiveSequence | None], on_token: StopCheck | None
    ) -> Iterator[ActiveSequence]:
        """Hand a step's tokens to the sequences that were in the slots then; free the slots of those that ended."""
        emitted, tokens, broken = result.emitted.tolist(), result.tokens.tolist(), result.broken.tolist()
        details = _trace_columns(result) if self.settings.trace else None
        for row, sequence in enumerate(slots):
            if sequence is not None and not sequence.finish_reason and broken[row]:
                sequence.fail(self._not_finite(len(sequence.tokens) + 1))
                self._free(sequence)
                yield sequence
                continue
            if sequence is None or sequence.finish_reason or not emitted[row]:
                continue
            sequence.tokens.append(tokens[row])
            if details is not None:
                sequence.trace.append(details(row, tokens[row]))
            stopped = on_token is not None and on_token(sequence.index, sequence.tokens)
            if tokens[row] in self.settings.eos_token_ids:
                sequence.finish_reason = "eos"
            elif stopped:
                sequence.finish_reason = "stop"
            elif len(sequence.tokens) >= sequence.budget:
                sequence.finish_reason = "length"
            if sequence.finish_reason:
                self._free(sequence)
                yield sequence

    def _not_finite(self, token: int) -> str:
        dtype = self.stepper.model.dtype
        remedy = "check its weights" if dtype == torch.float32 else "load it with dtype='float32'"
        kind = str(dtype).removeprefix("torch.")
        return f"expected finite logits from the {kind} model, got NaN or infinity at new token {token}; {remedy}"

    def _release(self) -> None:
        """Give back what decoding held; a decoder runs once."""
        self.cache.release()
        self.slots = []
        self.state = self.state.released()

    def _free(self, sequence: ActiveSequence) -> None:
        """Empty the slot that the sequence is in now."""
        row = next(row for row, slot in enumerate(self.slots) if slot is sequence)
        self.slots[row] = None
        self.state.active[row] = False
        self.cache.lengths[row] = 0  # an empty slot reads no prefix

    def _shrink(self) -> None:
        """With nothing left to refill, drop empty slots once they are half of all: they cost as much as others."""
        used = [row for row, slot in enumerate(self.slots) if slot is not None]
        if used and 2 * len(used) <= len(self.slots):
            rows = torch.tensor(used, device=self.device)
            self.state.keep(rows)
            self.cache.keep(rows)
            self.slots = [self.slots[row] for row in used]


def _stepper(
    model: Any,
    watermark: Watermark | None,
    policy: Policy,
    settings: DecodeSettings,
    slots: int,
    kernels: ops.Ops,
    device: torch.device,
) -> Stepper:
    vocab_size = vocabulary_size(model)
    ends = torch.zeros(vocab_size, dtype=torch.bool)
    ends[[i for i in settings.eos_token_ids if i < vocab_size]] = True  # a tokenizer may know more than the model
    noise = GumbelNoise.of(settings.seed, device, native=kernels.native) if settings.do_sample else None
    return Stepper(model, watermark, policy, settings, slots, make_warper(settings), kernels, ends.to(device), noise)


def candidate_slots(watermark: Watermark | None, policy: Policy, settings: DecodeSettings) -> int:
    """C: how many candidates one forward carries at most."""
    if watermark is None or not policy.looks_ahead:
        return 1
    if settings.slots is not None:
        return settings.slots
    if watermark.rule == "reweight":
        return 2
    most = watermark.max_candidates
    if watermark.rule == "top_k":
        most = max(1, round(policy.max_strength * watermark.full))
    return min(most, DEFAULT_EXP_SLOTS, MAX_SLOTS)


def history_needed(policy: Policy) -> int:
    """N-: how many earlier distributions the policy's evaluator reads."""
    if not isinstance(policy, CapacityPolicy):
        return 0
    policy.network.spec.check_decodable()
    policy.network.check_numbers()  # once more: its weights may have changed since the policy was made
    return policy.network.spec.previous


def decoding_device(model: Any) -> torch.device:
    """Where ids go in and logits come out: the main device of a device map, else the one of all weights."""
    return main_device(model) or model_device(model)


def model_device(model: Any) -> torch.device:
    """The device of all of a model's parameters; ValueError if they are spread over several."""
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1:
        raise ValueError(
            f"the model must be on one device, found {', '.join(devices)}; load it anew, with or without a device map"
        )
    return torch.device(devices[0])


def vocabulary_size(model: Any) -> int:
    """V: the width of the model's logits, which may exceed the tokenizer's."""
    head = model.get_output_embeddings()
    return head.weight.shape[0] if head is not None else model.config.get_text_config(decoder=True).vocab_size


def _trace_columns(result: StepResult) -> Callable[[int, int], TokenTrace]:
    capacity, strength = result.capacity.tolist(), result.strength.tolist()
    counts, choice, candidates = result.counts.tolist(), result.choice.tolist(), result.candidates.tolist()

    def row_trace(row: int, token: int) -> TokenTrace:
        return TokenTrace(token, capacity[row], strength[row], tuple(candidates[row][: counts[row]]), choice[row])

    return row_trace
