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
            **dict.fromkeys(("Policy", "Signals"), "caw.policies.base"),
            "CapacityPolicy": "caw.policies.capacity",
            "EntropyThreshold": "caw.policies.entropy",
            "FixedStrength": "caw.policies.fixed",
            "LogitDeltaThreshold": "caw.policies.logit_delta",
            "Target": "caw.policies.target",
        },
    )

__all__ = ["CapacityPolicy", "EntropyThreshold", "FixedStrength", "LogitDeltaThreshold", "Policy", "Signals", "Target"]
