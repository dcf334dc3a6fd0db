"""The policies that a Recommended brings."""

import dataclasses
import math

import pytest

import caw
from caw.policies.recommended import mark_of
from caw.policies.target import read_target
from caw.settings import Sampling

MARK = caw.Recommended(1, target=1e-2)
GREEDY, DRAWN = Sampling(), Sampling(do_sample=True)


def test_drawn_texts_are_marked_at_full_strength_without_a_target() -> None:
    for level in (None, 1e-6):
        assert MARK.of(DRAWN, level) == (MARK.drawn, caw.FixedStrength(1.0))


@pytest.mark.parametrize(("level", "reached"), [(None, 1e-2), (1e-4, 1e-4), (0.5, 1e-2)])
@pytest.mark.parametrize("evaluator", [None, "smollm2-135m"])
def test_greedy_ones_are_marked_at_strength_1_or_by_the_evaluator_named_until_half_of_the_level(
    level: float | None, reached: float, evaluator: str | None
) -> None:
    mark, policy = dataclasses.replace(MARK, evaluator=evaluator).of(GREEDY, level)
    target = read_target(policy.target)
    assert target is not None and math.isclose(1 - (1 - target.p_value) ** 2, reached, rel_tol=1e-9)
    named = caw.FixedStrength(1.0, target=target) if evaluator is None else caw.CapacityPolicy(evaluator, target=target)
    assert (mark, policy) == (MARK.greedy, named)


def test_a_policy_beside_it_is_refused() -> None:
    assert mark_of(MARK.greedy, None, GREEDY) == (MARK.greedy, caw.FixedStrength(1.0))
    with pytest.raises(ValueError, match="a Recommended brings its own policies, got FixedStrength as well; leave"):
        mark_of(MARK, caw.FixedStrength(1.0), GREEDY)
