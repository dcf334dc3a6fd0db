"""Targets as they are given and shown, and what is refused."""

import dataclasses
import json
from typing import Any

import pytest

import caw
from caw.cli.options import describe
from caw.policies import Target
from caw.policies.target import MARGIN, read_target


def test_a_p_value_is_a_target() -> None:
    policy = caw.FixedStrength(target=0.01)
    assert policy.target == Target(0.01) == Target(0.01, MARGIN)
    assert policy == caw.FixedStrength(target=Target(0.01)) != caw.FixedStrength()
    assert dataclasses.replace(policy, value=0.5).target == Target(0.01)
    assert round(Target(0.01).quantile, 4) == 2.3263 and Target(1e-300).quantile > 37


@pytest.mark.parametrize(("target", "shown"), [
    (Target(0.01), 0.01), (Target(0.01, margin=1.0), {"p_value": 0.01, "margin": 1.0}),
    (Target(0.01, weights="some-table"), {"p_value": 0.01, "weights": "some-table"}),
])  # fmt: skip
def test_output_lines_say_what_differs(target: Target, shown: Any) -> None:
    described = describe(caw.FixedStrength(target=target))
    assert read_target(shown) == target
    assert json.loads(json.dumps(described)) == {"name": "fixed", "strength": 1.0, "target": shown}


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda: caw.FixedStrength(target=0), ValueError, r"target must be a number in \(0, 1\), got 0; choose"),
    (lambda: caw.FixedStrength(target=1.0), ValueError, r"target must be a number in \(0, 1\), got 1.0; choose"),
    (lambda: caw.EntropyThreshold(1.0, target="x"), TypeError, r"target must be a number in \(0, 1\), got str 'x'"),
    (lambda: caw.LogitDeltaThreshold(1.0, target=float("nan")), ValueError, "target must be a number"),
    (lambda: caw.CapacityPolicy("smollm2-135m", target=True), TypeError, "target must be a number"),
    (lambda: Target(0.01, margin=-1), ValueError, r"margin must be a number in \[0, 100\], got -1"),
    (lambda: read_target({"p_value": 0.1, "law": "deficit"}), ValueError, "target has an unknown field 'law'"),
])  # fmt: skip
def test_targets_are_checked(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
