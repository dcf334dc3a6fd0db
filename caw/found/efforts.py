"""How much is done for a text in each attempt at it: strength and margin, from the weakest attempt up."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from statistics import NormalDist

from caw.decoding.row_settings import MAX_MARGIN
from caw.detection.detector import Detector
from caw.detection.weights import TokenWeights
from caw.found.trial import FOUND_SHARE
from caw.policies import Policy
from caw.policies.base import MAX_STRENGTH
from caw.policies.target import Target, read_target
from caw.record import RECORD_SIZE
from caw.settings import Settings
from caw.watermarks import Watermark

# from one attempt to the next: of the strength, and of the z at which marking rests
GROWTH, STEP = 1.5, 1.0


@dataclass(frozen=True)
class Effort:
    """factor: of the policy's strength. margin: added to the z that its target takes."""

    factor: float
    margin: float


def steered(policy: Policy, detector: Detector) -> Policy:
    """The policy with the detector's test as its target; one that has a target keeps its own.

    Weights that a model gives steer nothing: while a text is written, the model has not read what comes behind a token.
    Marks then rest by the test without weights, and the detector's own decides in the end.
    """
    if policy.target is not None:
        return policy
    made = copy.copy(policy)  # its evaluator is not read again
    table = detector.weights if isinstance(detector.weights, TokenWeights) else None
    object.__setattr__(made, "target", Target(detector.fpr, weights=table))
    return made


def efforts(watermark: Watermark, policy: Policy, settings: Settings, *, unmarked: bool = False) -> list[Effort]:
    """Of each attempt, in order: `max_attempts` of them, the first of them without a mark where `unmarked`.

    The candidates end at the policy's own strength, 1; later attempts go beyond it, with marks that rest later too: a
    text may be unfound because it was too weak, or because it was read otherwise than it was written.

    Raises ValueError for a policy that cannot be strengthened, and where no attempt would be marked.
    """
    check_strong(policy, watermark)
    if unmarked and settings.max_attempts == 1:
        raise ValueError(
            "select=Agreement(...) compares with the unmarked text, which is the first attempt, got max_attempts=1 (or "
            "a stream, which is made once); allow 2 or more"
        )
    greatest, base = greatest_factor(watermark, policy), edit_margin(watermark, policy, settings.edits)
    first = [Effort(0.0, 0.0)] if unmarked else []
    count = settings.max_attempts - len(first)
    weakest = 1 - min(settings.best_of, count)
    numbers = range(weakest, weakest + count)
    return first + [
        Effort(min(GROWTH**number, greatest), min(base + STEP * max(number, 0), MAX_MARGIN)) for number in numbers
    ]


def check_strong(policy: Policy, watermark: Watermark) -> None:
    """Raise ValueError for a policy or a watermark that marks nothing, however strongly."""
    if not watermark.full:
        raise ValueError(
            f"found_at needs a watermark that can be strengthened, got {watermark.name} with delta 0; choose a delta "
            "above 0"
        )
    if not policy.max_strength:
        raise ValueError(
            f"found_at needs a policy that can be strengthened, got {type(policy).__name__} of strength 0; "
            "choose a strength above 0"
        )


def greatest_factor(watermark: Watermark, policy: Policy) -> float:
    """The greatest factor of the policy's strength that the watermark's ladder can hold, at least 1."""
    most = RECORD_SIZE / (policy.greatest * watermark.full) if watermark.rule == "top_k" else math.inf
    return max(1.0, min(math.floor(most * 1000) / 1000 if most < MAX_STRENGTH else most, MAX_STRENGTH))


def edit_margin(watermark: Watermark, policy: Policy, edits: float) -> float:
    """What has to be added to z, so that it is enough once this share of the tokens is deleted.

    A piece of evidence is left if none of its window + 1 tokens is gone; z falls with the root of what is left, and
    chance, in what is left, moves it by about the root of what is gone: FOUND_SHARE of the draws have to be enough.
    """
    target = read_target(policy.target)
    if target is None:
        return 0.0
    left, needed = (1 - edits) ** (watermark.window + 1), target.quantile + target.margin
    chance = NormalDist().inv_cdf(FOUND_SHARE) * (1 - left) ** 0.5
    return min(max(0.0, (needed + chance) / left**0.5 - needed), MAX_MARGIN)
