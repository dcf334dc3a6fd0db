"""Policies: the strength of each token's mark."""

from caw.lazy import lazy_names

TYPE_CHECKING = False  # typing's own name costs an import
if TYPE_CHECKING:
    from caw.policies.base import Policy, Signals
    from caw.policies.capacity import CapacityPolicy
    from caw.policies.entropy import EntropyThreshold
    from caw.policies.fixed import FixedStrength
    from caw.policies.logit_delta import LogitDeltaThreshold
    from caw.policies.target import Target
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "caw.policies.base": "Policy Signals",
            "caw.policies.capacity": "CapacityPolicy",
            "caw.policies.entropy": "EntropyThreshold",
            "caw.policies.fixed": "FixedStrength",
            "caw.policies.logit_delta": "LogitDeltaThreshold",
            "caw.policies.target": "Target",
        },
    )

__all__ = ["CapacityPolicy", "EntropyThreshold", "FixedStrength", "LogitDeltaThreshold", "Policy", "Signals", "Target"]
