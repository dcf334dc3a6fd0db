"""Policies that reduce to one comparison, in the form that a captured step's kernel takes."""

from __future__ import annotations

from typing import NamedTuple

from caw.arrays import torch
from caw.policies.base import Policy, Signals
from caw.policies.capacity import CapacityPolicy
from caw.policies.entropy import EntropyThreshold, entropy
from caw.policies.fixed import FixedStrength
from caw.policies.logit_delta import LogitDeltaThreshold


class Gate(NamedTuple):
    """Strength `value` where signal, float32 [B], is above `threshold`, otherwise 0; signal None = everywhere."""

    value: float
    signal: torch.Tensor | None = None
    threshold: float = 0.0


def is_bounded(policy: Policy) -> bool:
    """Return whether strengths are within [0, max_strength] by construction; of exact types: a subclass may differ."""
    return type(policy) in (FixedStrength, EntropyThreshold, LogitDeltaThreshold, CapacityPolicy)


def gate_of(policy: Policy, signals: Signals) -> Gate | None:
    """Return the gate that gives this policy's strengths, bit for bit, by its exact type; None if it has none."""
    if type(policy) is FixedStrength:
        return Gate(policy.value)
    if type(policy) is EntropyThreshold:
        return Gate(policy.value, entropy(signals.logits), policy.nats)
    if type(policy) is LogitDeltaThreshold:  # a lead below the gap is one turned round above it
        top = signals.current.values
        return Gate(policy.value, top[:, 1] - top[:, 0], -policy.gap)
    return None
