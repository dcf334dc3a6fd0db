"""Plan one call before anything runs: how tokens are chosen, which step, how many texts at once, how much memory."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from caw import _ext, ops
from caw.decoding.closed_loop import ClosedLoop, close_loop
from caw.decoding.forward.prefill_attention import check_prefill_attention, compiled_prefill
from caw.decoding.memory import decoding_needs, one_at_a_time, rows_that_fit
from caw.decoding.plan_defaults import (
    NEVER,
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
from caw.decoding.row_marks import RowMarks, mark_that_races
from caw.decoding.row_settings import RowLimits
from caw.decoding.warping import Warper, make_warper
from caw.models.facts import ModelFacts
from caw.policies import Policy
from caw.policies.gate import is_bounded
from caw.policies.mark import Mark
from caw.settings import Settings
from caw.watermarks import Watermark


@dataclass(frozen=True)
class Plan:
    """How a batch is decoded: plain numbers and objects, which steps read and nobody copies.

    A mark picks a token from a ladder of candidates, or by a race of all tokens under noise that the key draws
    (`full_race.py`); a batch may hold texts of both (`mixed`).

    facts: the model's. settings: of the call.
    watermark: one that knows the model's vocabulary; None = tokens as the model gives them.
    race: the mark that races: `watermark` and `policy`, or another for some of the texts; None = none does.
    kernels: implementation of the ops. loop: how strengths follow a target; None without one.
    limits: how far the texts may differ. warper: applied to logits before the choice; None = nothing.
    mark_eos: whether marks may decide where a text ends; False keeps the original token wherever an end token is among
        the candidates that the policy's greatest strength reaches.
    history: N-, number of earlier distributions that the policy's evaluator reads. marks: the watermarks of all texts.
    batch: sequences at once. capacity: maximum tokens (prompt + new) of each.
    slots: C, maximum candidates of one forward.
    reach: number of earlier distributions computed from a prompt: N-, or more for a prompt cache.
    limit: length from which the model's rotary embedding changes, if texts may get there: each is then decoded by
        itself. None = they cannot.
    captured: whether steps read nothing back from the device, so that CUDA graphs can hold them.
    why_no_drafts: why forwards carry no drafts, "" if they may.
    keep_rows: never drop empty rows, so that row b stays sequence b. keep_mode: compute in the mode the model is in,
        with dropout if that is train mode.
    spare_memory: bytes that decoding leaves for a prompt cache; None = unknown.
    portioned: read a prompt in portions between steps while other texts are decoded, where that changes no bit.
    """

    facts: ModelFacts
    settings: Settings
    watermark: Watermark | None
    policy: Policy
    race: Mark | None
    kernels: ops.Ops
    loop: ClosedLoop | None
    limits: RowLimits
    warper: Warper | None
    mark_eos: bool
    history: int
    marks: RowMarks
    batch: int
    capacity: int
    slots: int = 1
    reach: int = 0
    limit: int | None = None
    captured: bool = False
    why_no_drafts: str = NEVER
    keep_rows: bool = False
    keep_mode: bool = False
    spare_memory: int | None = None
    prompt_cache: PromptCache | None = None
    portioned: bool = False

    @cached_property
    def looks_ahead(self) -> bool:
        """Whether the candidates go through the model before the choice."""
        return self.watermark is not None and self.policy.looks_ahead

    @cached_property
    def evaluates(self) -> bool:
        """Whether an evaluator gives the strengths."""
        return self.watermark is not None and self.policy.reads_capacity

    @cached_property
    def max_strength(self) -> float:
        """Maximum strength of any text: the policy's, times the maximum factor of a text."""
        return self.limits.greatest(self.policy.max_strength)

    @cached_property
    def unbounded(self) -> bool:
        """Whether the policy's strengths need checking."""
        return self.watermark is not None and not self.evaluates and not is_bounded(self.policy)

    @cached_property
    def mixed(self) -> bool:
        """Whether texts of two marks share the batch."""
        return self.race is not None and self.race.watermark is not self.watermark

    @cached_property
    def always_races(self) -> bool:
        """Whether the strength of the race is a row's factor alone."""
        return self.race is not None and self.race.always_races

    @cached_property
    def only_races(self) -> bool:
        """Whether no text ever needs a ladder."""
        return self.always_races and not (self.mixed or self.limits.factors) and self.limits.strength_factor == 1

    @cached_property
    def begins_freely(self) -> bool:
        """Whether texts may have a free beginning."""
        mark = self.race if self.race is not None and self.race.races else None
        free = mark is not None and mark.watermark is not None and mark.watermark.beginning > 0
        return free and self.limits.samples

    @cached_property
    def rungs(self) -> int:
        """M, the width of a captured step's ladders."""
        return 2 if self.only_races else 1 if self.watermark is None else self.watermark.rungs(self.max_strength)

    def within(self, limits: RowLimits) -> "Plan":
        """Return the plan for texts within these limits, by steps that read back."""
        plan = dataclasses.replace(
            self, limits=limits, captured=False, warper=make_warper(limits, sparse=True, native=self.kernels.native)
        )
        if plan.watermark is not None:
            plan.watermark.check_strength(plan.max_strength)
        return plan


def plan_choice(
    facts: ModelFacts, watermark: Watermark | None, policy: Policy, settings: Settings, limits: RowLimits,
    batch: int, *, kernels: ops.Ops | None = None, race: Mark | None = None,
) -> Plan:  # fmt: skip
    """Plan how tokens are chosen, wherever their logits come from; arguments as in `make_plan`."""
    watermark = None if watermark is None else watermark.with_vocabulary(facts.vocab_size)
    plan = Plan(
        facts=facts,
        settings=settings,
        watermark=watermark,
        policy=checked(policy),
        race=mark_that_races(Mark(watermark, policy), race),
        kernels=kernels or ops.dispatched(),
        loop=close_loop(policy.target, watermark, facts.vocab_size, facts.device),
        limits=limits,
        warper=None,
        mark_eos=marks_eos(settings.mark_eos, watermark, policy),
        history=history_needed(policy),
        marks=RowMarks(watermark, None if race is None else race.watermark),
        batch=batch,
        capacity=limits.length,
    )
    return plan.within(limits)


def make_plan(
    facts: ModelFacts, watermark: Watermark | None, policy: Policy, settings: Settings, limits: RowLimits,
    batch: int, *, kernels: ops.Ops | None = None, inside_generate: bool = False,
    prompt_cache: PromptCache | None = None, processors: Warper | None = None,
    captured: bool | None = None, race: Mark | None = None,
) -> Plan:  # fmt: skip
    """Make the plan; a batch that does not fit becomes a smaller one.

    Args:
        limits: how far the texts differ. batch: the most at once.
        kernels: None = as torch dispatches.
        inside_generate: in transformers' own `generate`, where rows and mode are the caller's.
        processors: applied to logits instead of the warpers that `settings` ask for.
        captured: None = on CUDA or with compile=True, where kernels, watermark and warper allow it.
        race: another mark that requests may carry, one that always races at full strength; None = there is none.

    Raises TypeError or ValueError in one sentence where settings do not go together or one sequence does not fit.
    """
    _ext.warn_without_cuda(facts.device)
    plan = plan_choice(facts, watermark, policy, settings, limits, batch, kernels=kernels, race=race)
    if settings.branching == "batch" and facts.spread:
        raise ValueError("branching='batch' needs a model on one device, found several; use 'sequential' or 'tree'")
    check_prefill_attention(settings.prefill_attention, facts.device, facts.dtype)
    if prompt_cache is not None and facts.mesh is not None:  # processes with other memory would keep other prompts
        raise ValueError("prompt_cache needs a model in one process, found one split over several; leave it out")
    capacity, native = limits.length, plan.kernels.native
    limit = facts.rope_limit if facts.rope_limit is not None and capacity > facts.rope_limit else None
    if limit is not None:  # texts of other lengths would change each other
        prompt_cache, batch = None, one_at_a_time(batch, limit, capacity, inside_generate)
    reach, capacity = positions_back(plan.history, prompt_cache), cache_places(capacity, facts.device, settings.compile)
    captured = will_capture(
        facts, plan.watermark, policy, settings, plan.kernels, plan.limits, limit, captured,
        processors=processors is not None,
    )  # fmt: skip
    slots = candidate_slots(plan.watermark, policy, settings, plan.max_strength, captured=captured)
    changing = limit is not None or (inside_generate and facts.dropping is not None)
    undrafted = why_no_drafts(facts, settings, plan.kernels, captured=captured, changing=changing)
    spare, carried = None, slots + most_drafts(settings, undrafted)
    if not inside_generate:
        compiled = compiled_prefill(settings.prefill_attention, facts.device, plan.kernels)
        needs = decoding_needs(facts, capacity, carried, reach, limit, compiled)
        batch, spare = rows_that_fit(facts, settings.max_memory, batch, needs)
    return dataclasses.replace(
        plan, warper=processors or make_warper(plan.limits, sparse=not captured, native=native),
        batch=batch, capacity=capacity, slots=slots, reach=reach, limit=limit, captured=captured,
        why_no_drafts=undrafted, spare_memory=spare, prompt_cache=prompt_cache, keep_mode=inside_generate,
        # dropping empty rows would compile the body again for the smaller batch, which takes a minute
        keep_rows=inside_generate or settings.compile,
    )  # fmt: skip
