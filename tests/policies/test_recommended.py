"""The policies that a Recommended brings."""

import math

import pytest

import caw
from caw.policies.recommended import Facts, mark_of
from caw.policies.target import read_target
from caw.settings import Sampling

MARK = caw.Recommended(1, target=1e-2)


GREEDY, DRAWN = Sampling(), Sampling(do_sample=True)


def p_value(policy: caw.policies.Policy) -> float:
    target = read_target(policy.target)
    assert target is not None
    return target.p_value


def test_drawn_texts_are_marked_at_full_strength_without_a_target() -> None:
    for level in (None, 1e-6):
        assert MARK.of(DRAWN, Facts("smollm2-135m", level=level)) == (MARK.drawn, caw.FixedStrength(1.0))


@pytest.mark.parametrize(("level", "reached"), [(None, 1e-2), (1e-4, 1e-4), (0.5, 1e-2)])
def test_greedy_ones_get_the_evaluator_of_their_model_and_half_of_the_level(
    level: float | None, reached: float
) -> None:
    mark, policy = MARK.of(GREEDY, Facts("somewhere/SmolLM2-135M-Instruct", level=level))
    assert mark == MARK.greedy and isinstance(policy, caw.CapacityPolicy) and policy.evaluator == "smollm2-135m"
    assert math.isclose(1 - (1 - p_value(policy)) ** 2, reached, rel_tol=1e-9)


@pytest.mark.parametrize("name", ["no such model", ""])
def test_a_model_without_an_evaluator_gets_the_universal_one(name: str) -> None:
    _, policy = MARK.of(GREEDY, Facts(name))
    assert isinstance(policy, caw.CapacityPolicy) and policy.evaluator == "universal" and p_value(policy) < 1e-2


def test_without_classes_of_tokens_there_is_none_and_texts_are_marked_at_strength_1() -> None:
    _, policy = MARK.of(GREEDY, Facts("no such model", classes=False))
    assert isinstance(policy, caw.FixedStrength) and policy.value == 1 and p_value(policy) < 1e-2
    named = caw.Recommended(1, evaluator="smollm2-135m")
    own = Facts("smollm2-135m", classes=False)
    assert named.evaluator_for(Facts("no such model")) == "smollm2-135m" == MARK.evaluator_for(own)
    assert MARK.evaluator_for(Facts(classes=False)) is None


def test_a_policy_beside_it_is_refused() -> None:
    assert mark_of(MARK.greedy, None, GREEDY, Facts()) == (MARK.greedy, caw.FixedStrength(1.0))
    with pytest.raises(ValueError, match="a Recommended brings its own policies, got FixedStrength as well; leave"):
        mark_of(MARK, caw.FixedStrength(1.0), GREEDY, Facts())
