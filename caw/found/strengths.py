"""How strongly the attempts at a text are made: by factors of its policy's own strength, from the weakest up."""

from __future__ import annotations

import math

from caw.policies import FixedStrength, Policy
from caw.policies.base import MAX_STRENGTH
from caw.record import RECORD_SIZE
from caw.settings import Settings
from caw.watermarks import SynthID, Watermark

GROWTH = 1.5  # of the strength from one attempt to the next


def attempt_factors(watermark: Watermark, policy: Policy, settings: Settings) -> list[float]:
    """What the policy's strength is multiplied by in each attempt, in order; at most `max_attempts`.

    The candidates end at the policy's own strength, 1, and later attempts go beyond it as far as the watermark can
    follow. Greedy attempts of equal strength would be equal texts, so there is one of them; samples differ.

    Raises ValueError for a policy that cannot be strengthened.
    """
    if not policy.max_strength:
        raise ValueError(
            f"found_at needs a policy that can be strengthened, got {type(policy).__name__} of strength 0; "
            "choose a strength above 0"
        )
    greatest = greatest_factor(watermark, policy)
    before = settings.best_of - 1
    wanted = [GROWTH ** (number - before) for number in range(settings.max_attempts)]
    if greatest <= 1 and settings.max_attempts > settings.best_of and not settings.do_sample:
        raise ValueError(
            f"found_at makes a text again with a stronger mark, got a policy that cannot be strengthened: strength "
            f"{policy.max_strength:g} is all that {watermark.name} can follow; lower it, or set max_attempts="
            f"{settings.best_of}"
        )
    factors = [min(factor, max(1.0, greatest)) for factor in wanted]
    return factors if settings.do_sample else list(dict.fromkeys(factors))


def greatest_factor(watermark: Watermark, policy: Policy) -> float:
    """The greatest factor of the policy's strength that changes anything and that the watermark's ladder can hold."""
    if isinstance(watermark, SynthID) and isinstance(policy, FixedStrength):
        return 1 / policy.max_strength  # all layers are in use
    most = RECORD_SIZE / (policy.max_strength * watermark.full) if watermark.rule == "top_k" else math.inf
    return min(math.floor(most * 1000) / 1000 if most < MAX_STRENGTH else most, MAX_STRENGTH)
