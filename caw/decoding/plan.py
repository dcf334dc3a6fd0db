"""Plan one call before anything runs: which step, how many texts at once, how much memory."""

from __future__ import annotations

from dataclasses import dataclass

from caw import _ext, ops
from caw.decoding.choosing import Rules
from caw.decoding.closed_loop import close_loop
from caw.decoding.forward.prefill_attention import check_prefill_attention, compiled_prefill
from caw.decoding.full_race import mark_that_races
from caw.decoding.memory import decoding_needs, one_at_a_time, rows_that_fit
from caw.decoding.plan_defaults import (
    cache_places,
    candidate_slots,
    checked,
    history_needed,
    marks_eos,
    most_drafts,
    why_no_drafts,
    will_capture,
)
from caw.decoding.prompt_cache import PromptCache, positions_back
from caw.decoding.request import Workload
from caw.decoding.row_settings import RowLimits, RowSettings
from caw.decoding.warping import Warper, make_warper
from caw.models.facts import ModelFacts
from caw.policies import Policy
from caw.policies.base import Mark
from caw.settings import Settings
from caw.watermarks import Watermark


@dataclass(frozen=True)
class Plan(Rules):
    """Settings by which a `Decoder` decodes; those by which it chooses tokens are in `Rules`.

    facts: the model's.
    batch: sequences at once. capacity: maximum tokens (prompt + new) of each.
    slots: C, maximum candidates of one forward.
    reach: number of earlier distributions computed from a prompt: N-, or more for a prompt cache.
    limit: length from which the model's rotary embedding changes, if texts may get there: each is then decoded by
        itself. None = they cannot.
    why_no_drafts: why forwards carry no drafts, "" if they may.
    captured: whether steps read nothing back from the device, so that CUDA graphs can hold them.
    keep_rows: never drop empty rows, so that row b stays sequence b. keep_mode: compute in the mode the model is in,
        with dropout if that is train mode.
    spare_memory: bytes that decoding leaves for a prompt cache; None = unknown.
    portioned: read a prompt in portions between steps while other texts are decoded, where that changes no bit.
    """

    facts: ModelFacts
    settings: Settings
    batch: int
    capacity: int
    slots: int
    reach: int
    limit: int | None
    captured: bool
    why_no_drafts: str
    keep_rows: bool
    keep_mode: bool
    spare_memory: int | None
    prompt_cache: PromptCache | None
    portioned: bool = False


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
    race: Mark | None = None,
) -> Plan:
    """Make the plan; a batch that does not fit becomes a smaller one.

    Args:
        kernels: None = as torch dispatches.
        inside_generate: in transformers' own `generate`, where rows and mode are the caller's.
        processors: applied to logits instead of the warpers that `settings` ask for.
        captured: None = on CUDA or with compile=True, where kernels, watermark and warper allow it.
        race: another mark that requests may carry, one that always races at full strength; None = there is none.

    Raises TypeError or ValueError in one sentence where settings do not go together or one sequence does not fit.
    """
    _ext.warn_without_cuda(facts.device)
    batch, capacity, kernels = work.batch, work.capacity, kernels or ops.dispatched()
    limits = work.limits or RowLimits.of([RowSettings.of(settings)], facts.ends)
    max_strength = limits.greatest(checked(policy).max_strength)
    if watermark is not None:
        watermark = watermark.with_vocabulary(facts.vocab_size)
        watermark.check_strength(max_strength)
    if settings.branching == "batch" and facts.spread:
        raise ValueError("branching='batch' needs a model on one device, found several; use 'sequential' or 'tree'")
    check_prefill_attention(settings.prefill_attention, facts.device, facts.dtype)
    if prompt_cache is not None and facts.mesh is not None:  # processes with other memory would keep other prompts
        raise ValueError("prompt_cache needs a model in one process, found one split over several; leave it out")
    limit = facts.rope_limit if facts.rope_limit is not None and capacity > facts.rope_limit else None
    if limit is not None:  # texts of other lengths would change each other
        prompt_cache, batch = None, one_at_a_time(batch, limit, capacity, inside_generate)
    history = history_needed(policy)
    reach = positions_back(history, prompt_cache)
    capacity = cache_places(capacity, facts.device, settings.compile)
    warper = processors or make_warper(limits)
    captured = will_capture(facts, watermark, policy, settings, kernels, limits, warper, limit, captured)
    slots = candidate_slots(watermark, policy, settings, max_strength, captured=captured)
    changing = limit is not None or (inside_generate and facts.dropping is not None)
    undrafted = why_no_drafts(facts, settings, kernels, captured=captured, changing=changing)
    spare, carried = None, slots + most_drafts(settings, undrafted)
    if not inside_generate:
        compiled = compiled_prefill(settings.prefill_attention, facts.device, kernels)
        needs = decoding_needs(facts, capacity, carried, reach, limit, compiled)
        batch, spare = rows_that_fit(facts, settings.max_memory, batch, needs)
    return Plan(
        facts=facts,
        watermark=watermark,
        policy=policy,
        race=mark_that_races(watermark, policy, race),
        settings=settings,
        kernels=kernels,
        loop=close_loop(policy.target, watermark, facts.vocab_size, facts.device),
        limits=limits,
        warper=warper,
        mark_eos=marks_eos(settings.mark_eos, watermark, policy),
        batch=batch,
        capacity=capacity,
        slots=slots,
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
