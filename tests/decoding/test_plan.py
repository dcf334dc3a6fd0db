"""What is worked out before anything runs."""

from dataclasses import replace
from typing import Any

import pytest

import caw
from caw.decoding.plan import Plan, make_plan
from caw.decoding.plan_defaults import DEFAULT_EXP_SLOTS, marks_eos
from caw.decoding.row_settings import RowLimits, RowSettings
from caw.evaluator import Evaluator, FeatureSpec
from caw.models.facts import ModelFacts
from caw.policies import Policy
from caw.settings import Settings
from caw.watermarks import Watermark

KGW, FOREIGN = caw.KGW(key=1), caw.KGW(key=1, format="transformers", vocab_size=50)
FIXED = caw.FixedStrength(1.0)


@pytest.fixture(scope="module")
def facts(llama: Any) -> ModelFacts:
    return ModelFacts.of(llama)


def looking_ahead(beta: float) -> Policy:
    return caw.CapacityPolicy(Evaluator(FeatureSpec(1, 1), hidden=4), theta=0.5, beta=beta)


def plan_of(
    facts: ModelFacts, watermark: Watermark | None = None, policy: Policy = FIXED, capacity: int = 40, **more: Any
) -> Plan:
    beside = {name: more.pop(name) for name in ("prompt_cache", "inside_generate") if name in more}
    limits, settings = more.pop("limits", None), Settings(**more)
    limits = limits or RowLimits.of([RowSettings.of(settings)], facts.ends)
    return make_plan(facts, watermark, policy, settings, replace(limits, length=capacity), 4, **beside)


@pytest.mark.parametrize(
    ("watermark", "beta", "settings", "slots"),
    [
        (None, 1.0, {}, 1),
        (KGW, None, {}, 1),  # no look-ahead
        (KGW, 1.0, {}, 2),  # the favourite and the best green token
        (KGW, 1.0, {"slots": 5}, 5),
        (caw.EXP(key=1, top_k=3), 1.0, {}, 3),
        (caw.EXP(key=1, top_k=3), 2.0, {}, 6),  # up to 6 tokens race at the greatest strength
        (caw.EXP(key=1, top_k=30), 1.0, {}, DEFAULT_EXP_SLOTS),
        (caw.EXP(key=1, strength="scale"), 1.0, {}, DEFAULT_EXP_SLOTS),
    ],
)
def test_candidates_that_a_forward_carries(
    facts: ModelFacts, watermark: Watermark | None, beta: float | None, settings: dict[str, Any], slots: int
) -> None:
    policy = FIXED if beta is None else looking_ahead(beta)
    plan = plan_of(facts, watermark, policy, **settings)
    assert plan.slots == slots
    assert plan.looks_ahead == (watermark is not None and beta is not None)


@pytest.mark.parametrize(
    ("watermark", "unasked"), [(None, False), (KGW, False), (FOREIGN, True), (caw.SynthID(key=1), True)]
)
def test_who_decides_about_ends(watermark: Watermark | None, unasked: bool) -> None:
    for policy in (FIXED, None, looking_ahead(1.0)):
        assert marks_eos(None, watermark, policy) is unasked
        assert marks_eos(True, watermark, policy) is True and marks_eos(False, watermark, policy) is False


def test_a_race_at_full_strength_decides_about_ends() -> None:
    race = caw.EXP(key=1, strength="scale")
    for policy in (FIXED, None, caw.EntropyThreshold(1.0), caw.LogitDeltaThreshold(1.0)):
        assert marks_eos(None, race, policy) and not marks_eos(False, race, policy)
        assert not marks_eos(None, caw.EXP(key=1), policy)
    for policy in (caw.FixedStrength(0.5), caw.FixedStrength(1.5), looking_ahead(1.0)):
        assert not marks_eos(None, race, policy)


def test_a_watermark_gets_the_models_vocabulary(facts: ModelFacts) -> None:
    plan = plan_of(facts, caw.KGW(key=1, format="transformers"))
    assert plan.watermark is not None and plan.watermark.vocab_size == facts.vocab_size  # type: ignore[attr-defined]


def test_the_greatest_strength_is_that_of_all_texts(facts: ModelFacts) -> None:
    limits = RowLimits.of([RowSettings(), RowSettings(strength_factor=2.0)], facts.ends)
    watermark = caw.EXP(key=1, top_k=10)
    assert plan_of(facts, watermark, caw.FixedStrength(0.5), limits=limits).max_strength == 1.0
    assert plan_of(facts, watermark, caw.FixedStrength(0.5)).max_strength == 0.5
    with pytest.raises(ValueError, match="top_k"):  # 10 * 6 * 2 tokens would race, and a record has 100
        plan_of(facts, watermark, caw.FixedStrength(6.0), limits=limits)


def test_prompts_are_kept_in_one_process_only(facts: ModelFacts) -> None:
    with pytest.raises(ValueError, match="prompt_cache needs a model in one process"):
        plan_of(replace(facts, mesh=object()), prompt_cache=caw.PromptCache())
