"""Policies by name, for the command line, YAML files and benchmarks. Importing this module imports none of them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # PyTorch takes a second to import
    from caw.policies.base import Policy


@dataclass(frozen=True)
class PolicyEntry:
    """class_name: in `caw.policies`. parameters: options and arguments. needed: the one without default, or ""."""

    class_name: str
    parameters: dict[str, str]
    needed: str = ""


TARGET = {"target": "target"}
# in Python `strength` is what a policy does, so that its argument is called value
POLICIES = {
    "fixed": PolicyEntry("FixedStrength", {"strength": "value", **TARGET}),
    "entropy": PolicyEntry("EntropyThreshold", {"nats": "nats", "strength": "value", **TARGET}, needed="nats"),
    "logit-delta": PolicyEntry("LogitDeltaThreshold", {"gap": "gap", "strength": "value", **TARGET}, needed="gap"),
    "capacity": PolicyEntry("CapacityPolicy", {"theta": "theta", "beta": "beta", "evaluator": "evaluator", **TARGET}),
}


def make_policy(name: str, **parameters: Any) -> Policy:
    """Build the policy of a name in POLICIES. Raises what its class raises, KeyError for other parameters."""
    entry = POLICIES[name]
    arguments = {entry.parameters[parameter]: value for parameter, value in parameters.items()}
    policy: Policy = getattr(importlib.import_module("caw.policies"), entry.class_name)(**arguments)
    return policy


def policy_name(policy: Policy) -> str:
    """Return the name of a policy's class. KeyError for an unlisted class."""
    return {entry.class_name: name for name, entry in POLICIES.items()}[type(policy).__name__]
