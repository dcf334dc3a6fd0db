"""What one call will do, worked out before anything runs: which step, how many sequences at once, how much memory."""

from __future__ import annotations

from dataclasses import dataclass

from caw import _ext, ops
from caw.decoding.batch_size import one_at_a_time, rows_that_fit
from caw.decoding.capturable import will_capture
from caw.decoding.closed_loop import ClosedLoop, close_loop
from caw.decoding.draftable import graph_drafts, most_drafts, why_no_drafts
from caw.decoding.forward.prefill_attention import check_prefill_attention, compiled_prefill
from caw.decoding.memory_needs import decoding_needs
from caw.decoding.plan_defaults import cache_places, candidate_slots, history_needed, marks_eos
from caw.decoding.prompt_cache import PromptCache, positions_back
from caw.decoding.row_settings import RowLimits, RowSettings
from caw.decoding.warping import Warper, make_warper
from caw.decoding.workload import Workload
from caw.models.facts import ModelFacts
from caw.policies import Policy
from caw.settings import Settings
from caw.watermarks import Watermark


@dataclass(frozen=True)
class Plan:
    """How a `Decoder` decodes.

    facts: the model's. watermark: one that knows the model's vocabulary. kernels: implementation of the ops.
    loop: how strengths follow a target; None without one.
    limits: how far the texts may differ. warper: what is done to logits before the choice, None = nothing.
    mark_eos: whether marks may decide where a text ends; False keeps the original token wherever one of `facts.ends`
        is among the candidates that the policy's greatest strength reaches.
    batch: sequences at once. capacity: tokens (prompt + new) that each has room for.
    slots: C, candidates that one forward carries at most. copies: of each prefix, more than 1 for the batch baseline.
    history: N-, how many earlier distributions the policy's evaluator reads. reach: how many of them a prompt is read
        for, which a prompt cache may want more of.
    limit: length from which the model's rotary embedding changes, if texts may get there: each is then decoded by
        itself. None = they cannot.
    why_no_drafts: why forwards carry no drafts, "" where they may; see `draftable`.
    captured: whether steps read nothing back from the device, so that CUDA graphs can hold them.
    keep_rows: never drop empty rows, so that row b stays sequence b. keep_mode: compute in the mode the model is in,
        with dropout if that is train mode.
    spare_memory: bytes that decoding leaves for a prompt cache; None = unknown.
    """

    facts: ModelFacts
    watermark: Watermark | None
    policy: Policy
    settings: Settings
    kernels: ops.Ops
    loop: ClosedLoop | None
    limits: RowLimits
    warper: Warper | None
    mark_eos: bool
    batch: int
    capacity: int
    slots: int
    copies: int
    history: int
    reach: int
    limit: int | None
    captured: bool
    why_no_drafts: str
    keep_rows: bool
    keep_mode: bool
    spare_memory: int | None
    prompt_cache: PromptCache | None

    @property
    def looks_ahead(self) -> bool:
        return self.watermark is not None and self.policy.looks_ahead

    @property
    def drafts(self) -> int:
        """Of each sequence in every captured step."""
        return graph_drafts(self.settings, self.why_no_drafts, self.captured)

    @property
    def max_strength(self) -> float:
        """The greatest that any text may be marked with."""
        return self.limits.greatest(self.policy.greatest)


def make_plan(
    facts: ModelFacts,
    watermark: Watermark | None,
    policy: Policy,
    settings: Settings,
    work: Workload,
    *,
    kernels: ops.Ops | None = None,
    inside_generate: bool = False,
    prompt_cache: PromptCache | None = None,
    processors: Warper | None = None,
    captured: bool | None = None,
) -> Plan:
    """The plan for some work; a batch that does not fit becomes a smaller one.

    Args:
        kernels: None = as torch dispatches.
        inside_generate: in transformers' own `generate`, where rows and mode are the caller's.
        processors: what is done to logits, in place of the warpers that `settings` ask for.
        captured: None = on CUDA and with compile, where kernels, watermark and warper allow it.

    Raises TypeError or ValueError in one sentence where settings do not go together or one sequence does not fit.
    """
    _ext.warn_without_cuda(facts.device)
    batch, capacity, kernels = work.batch, work.capacity, kernels or ops.dispatched()
    limits = work.limits or RowLimits.of([RowSettings.of(settings)], facts.ends)
    max_strength = limits.greatest(policy.greatest)
    if watermark is not None:
        watermark = watermark.with_vocabulary(facts.vocab_size)
        watermark.check_strength(max_strength)
    check_prefill_attention(settings.prefill_attention, facts.device, facts.dtype)
    if prompt_cache is not None and facts.mesh is not None:  # processes with other memory would keep other prompts
        raise ValueError("prompt_cache needs a model in one process, found one split over several; leave it out")
    limit = facts.rope_limit if facts.rope_limit is not None and capacity > facts.rope_limit else None
    if limit is not None:  # texts of other lengths would change each other
        prompt_cache, batch = None, one_at_a_time(batch, limit, capacity, inside_generate)
    slots, history = candidate_slots(watermark, policy, settings, max_strength), history_needed(policy)
    copies, reach = slots if settings.branching == "batch" else 1, positions_back(history, prompt_cache)
    capacity = cache_places(capacity, facts.device, settings.compile)
    warper = processors or make_warper(limits)
    captured = will_capture(facts, watermark, policy, settings, kernels, limits, warper, limit, captured)
    changing = limit is not None or (inside_generate and facts.dropping is not None)
    undrafted = why_no_drafts(facts, settings, kernels, captured=captured, changing=changing, slots=slots, batch=batch)
    spare, carried = None, slots + most_drafts(settings, undrafted)
    if not inside_generate:
        compiled = compiled_prefill(settings.prefill_attention, facts.device, kernels)
        needs = decoding_needs(facts, capacity, carried, copies, reach, limit, compiled)
        batch, spare = rows_that_fit(facts, settings.max_memory, batch, needs)
    return Plan(
        facts=facts,
        watermark=watermark,
        policy=policy,
        settings=settings,
        kernels=kernels,
        loop=close_loop(policy.target, watermark, facts),
        limits=limits,
        warper=warper,
        mark_eos=marks_eos(settings.mark_eos, watermark),
        batch=batch,
        capacity=capacity,
        slots=slots,
        copies=copies,
        history=history,
        reach=reach,
        limit=limit,
        captured=captured,
        why_no_drafts=undrafted,
        # dropping empty rows would compile the body again for the smaller batch, which takes a minute
        keep_rows=inside_generate or settings.compile,
        keep_mode=inside_generate,
        spare_memory=spare,
        prompt_cache=prompt_cache,
    )
