"""Every policy has a name, and its name leads back to it."""

from dataclasses import MISSING, fields

import pytest

import caw
from caw.evaluator import Evaluator, FeatureSpec
from caw.policies import Target
from caw.policies.names import POLICIES, make_policy, policy_name

PARAMETERS = {
    "fixed": {"strength": 0.5, "target": Target(0.01)},
    "entropy": {"nats": 1.5, "strength": 0.5, "target": Target(0.01)},
    "logit-delta": {"gap": 2.0, "strength": 0.5, "target": Target(0.01)},
    "capacity": {"evaluator": Evaluator(FeatureSpec(), hidden=8), "theta": 0.4, "beta": 1.5, "target": Target(0.01)},
}


@pytest.mark.parametrize("name", POLICIES)
def test_names_and_classes_belong_together(name: str) -> None:
    entry, parameters = POLICIES[name], PARAMETERS[name]
    policy = make_policy(name, **parameters)
    assert policy_name(policy) == name and type(policy) is getattr(caw, entry.class_name)
    assert {getattr(policy, entry.parameters[parameter]) for parameter in parameters} == set(parameters.values())
    arguments = {field.name: field for field in fields(policy) if field.init}  # type: ignore[arg-type]
    assert set(entry.parameters.values()) == set(arguments)
    without = [said for said, argument in entry.parameters.items() if arguments[argument].default is MISSING]
    assert without == ([entry.needed] if entry.needed else [])


def test_a_parameter_of_another_policy_is_an_error() -> None:
    with pytest.raises(KeyError, match="nats"):
        make_policy("fixed", nats=1.0)
