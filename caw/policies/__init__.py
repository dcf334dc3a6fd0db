"""Policies: how strongly each token is marked, decided from the model's distributions alone."""

from caw.policies.base import Policy, Signals
from caw.policies.capacity import CapacityPolicy
from caw.policies.entropy import EntropyThreshold
from caw.policies.fixed import FixedStrength
from caw.policies.logit_delta import LogitDeltaThreshold

__all__ = ["CapacityPolicy", "EntropyThreshold", "FixedStrength", "LogitDeltaThreshold", "Policy", "Signals"]
