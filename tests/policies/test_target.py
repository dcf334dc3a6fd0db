"""Steering laws by hand, targets as they are given and shown, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch

import caw
from caw.cli.options import describe
from caw.policies import Deficit, Lagrangian, Stop, Target
from caw.policies.target import EARLY, MARGIN, Law, Standing, read_target


def standing(z: list[float], needed: float = 3.0, tokens: int = 92, budget: int = 200) -> Standing:
    def whole(value: int) -> torch.Tensor:
        return torch.full((len(z),), value)

    return Standing(torch.tensor(z).double(), torch.full((len(z),), needed).double(), whole(tokens), whole(budget))


def test_stop_marks_until_the_text_is_found() -> None:
    assert Stop().factor(standing([-1.0, 2.999, 3.0, 9.0])).tolist() == [1, 1, 0, 0]


def test_deficit_follows_its_plan() -> None:
    """At 92 of 100 tokens the whole z is due; a quarter of the way, half of it."""
    law = Deficit(tokens=100, on_plan=0.5, gain=0.25, most=1.5)
    assert law.factor(standing([3.0, 2.0, 1.0, -4.0])).tolist() == [0, 0.75, 1.0, 1.5]
    early = standing([1.5, 0.5, 3.0], tokens=25 - EARLY)
    assert law.factor(early).tolist() == [0.5, 0.75, 0]
    assert law.factor(standing([2.5], tokens=25 - EARLY)).tolist() == [0.25], "ahead of the plan: less"
    assert law.factor(standing([1.5], tokens=25 - EARLY, budget=25)).tolist() == [0.875], "a short text is due sooner"
    assert law.factor(early).dtype == torch.float32


def test_a_lagrangian_pays_by_importance() -> None:
    """lambda > importance * gap as a strength: half where tokens matter twice as much; none where the text is found."""
    law = Lagrangian(free=0.25)
    at, own = torch.tensor([0.01, 0.25, 0.5, 0.75, 1.0]), torch.rand(5)
    assert law.strength(own, at, torch.full((5,), 1.5)).tolist() == [1.5, 1.5, 0.75, 0.5, 0.375]
    assert Stop().strength(own, at, at) is own and Deficit().strength(own, at, at) is own
    assert law.factor(standing([3.0, -9.0])).tolist() == [0, 1.5]


def test_factors_stay_within_the_greatest() -> None:
    at = standing(torch.linspace(-40, 40, 81).tolist())
    for law in (Stop(), Deficit(), Deficit(most=0.2), Deficit(gain=100.0), Lagrangian()):
        factor = law.factor(at)
        assert float(factor.min()) >= 0
        assert bool((factor <= torch.tensor(law.max_factor, dtype=torch.float32)).all())


def test_a_p_value_is_a_target() -> None:
    policy = caw.FixedStrength(target=0.01)
    assert policy.target == Target(0.01) == Target(0.01, MARGIN, Stop()) == Target(0.01, law="stop")
    assert policy == caw.FixedStrength(target=Target(0.01)) != caw.FixedStrength()
    assert dataclasses.replace(policy, value=0.5).target == Target(0.01)
    assert round(Target(0.01).quantile, 4) == 2.3263 and Target(1e-300).quantile > 37


def test_the_greatest_strength_follows_the_law() -> None:
    law = Deficit(most=1.3)
    policy = caw.EntropyThreshold(1.0, value=0.3, target=Target(0.01, law=law))
    assert policy.max_strength == 0.3
    assert policy.greatest == float(torch.tensor(0.3) * torch.tensor(1.3))
    assert caw.FixedStrength(0.3).greatest == caw.FixedStrength(0.3, 0.01).greatest == 0.3


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        (Target(0.01), 0.01),
        (Target(0.01, margin=1.0), {"p_value": 0.01, "margin": 1.0}),
        (
            Target(0.01, law=Deficit(tokens=50), weights="some-table"),
            {
                "p_value": 0.01,
                "law": {"name": "deficit", "tokens": 50, "on_plan": 0.5, "gain": 0.5, "most": 1.5},
                "weights": "some-table",
            },
        ),
    ],
)
def test_output_lines_say_what_differs(target: Target, shown: Any) -> None:
    described = describe(caw.FixedStrength(target=target))
    assert read_target(shown) == target
    assert json.loads(json.dumps(described)) == {"name": "fixed", "strength": 1.0, "target": shown}


class Odd(Law):
    max_factor = 1.0

    def factor(self, standing: Standing) -> torch.Tensor:
        return torch.ones_like(standing.z).float()


def test_a_law_of_ones_own_is_named_by_its_class() -> None:
    assert Target(0.01, law=Odd()).described() == {"p_value": 0.01, "law": {"name": "Odd"}}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: caw.FixedStrength(target=0), ValueError, r"target must be a number in \(0, 1\), got 0; choose"),
        (lambda: caw.FixedStrength(target=1.0), ValueError, r"target must be a number in \(0, 1\), got 1.0; choose"),
        (lambda: caw.EntropyThreshold(1.0, target="x"), TypeError, r"target must be a number in \(0, 1\), got str 'x'"),
        (lambda: caw.LogitDeltaThreshold(1.0, target=float("nan")), ValueError, "target must be a number"),
        (lambda: caw.CapacityPolicy("smollm2-135m", target=True), TypeError, "target must be a number"),
        (lambda: Target(0.01, margin=-1), ValueError, r"margin must be a number in \[0, 100\], got -1"),
        (
            lambda: Target(0.01, law="never"),
            ValueError,
            "law must be one of stop, deficit, lagrangian or a Law, got 'never'; use",
        ),
        (lambda: Lagrangian(free=0), ValueError, "free must be above 0, got 0, which would mark nothing; use 0.2"),
        (lambda: Deficit(tokens=0), ValueError, r"tokens must be an integer in \[1, "),
        (lambda: Deficit(most=-1), ValueError, r"most must be a number in \[0, 100\], got -1"),
    ],
)
def test_targets_are_checked(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
