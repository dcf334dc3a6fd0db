"""The effort of each attempt at a text: strength and margin, from the weakest attempt up."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from caw.decoding.row_settings import MAX_MARGIN
from caw.detectable.trial import DETECTED_SHARE, check_markable, check_reach
from caw.detection.detector import Detector
from caw.detection.family import level_of, lone_target
from caw.detection.weights import TokenWeights
from caw.io.show import shown
from caw.policies import FixedStrength, Policy
from caw.policies.base import MAX_STRENGTH
from caw.policies.mark import Mark
from caw.policies.target import Target, read_target
from caw.record import RECORD_SIZE
from caw.settings import OF_DETECTABLE, Settings
from caw.watermarks import Signature, Watermark

USUAL = Settings()

# from one attempt to the next: of the strength, and of the z at which marking rests
GROWTH, STEP = 1.5, 1.0


@dataclass(frozen=True)
class Effort:
    """factor: of the policy's strength. margin: added to the z that its target takes."""

    factor: float
    margin: float


def steered(policy: Policy, detector: Detector, watermark: Watermark | None = None) -> Policy:
    """Return the policy with the detector's test as its target; a policy with a target keeps its own.

    watermark: the one that marks; None = the detector's.

    Weights from a model do not steer: during generation the model has not read what follows a token. Marking then stops
    by the test without weights, and the detector's own test decides in the end. A race at full strength has no target.
    """
    mark = watermark or detector.mark
    if policy.target is not None or Mark(mark, policy).races:
        return policy
    copied = copy.copy(policy)  # its evaluator is not read again
    table = detector.weights if isinstance(detector.weights, TokenWeights) else None
    object.__setattr__(copied, "target", Target(level_of(detector.fpr, detector.watermark, mark), weights=table))
    return copied


def efforts(watermark: Watermark, policy: Policy, settings: Settings, *, unmarked: bool = False) -> list[Effort]:
    """Return the effort of each of `max_attempts` attempts, in order, the first without a mark if `unmarked`.

    The candidates end at the policy's own strength, 1. Retries go beyond it and also stop marking later: a text may be
    undetected because its mark was too weak, or because it was tokenised differently. A race at full strength has one
    strength: the attempts at a text have other seeds and so other beginnings; without one there is one text.

    Raises ValueError for a policy that cannot be strengthened, and where no attempt would be marked.
    """
    check_strong(policy, watermark)
    check_candidates(policy, watermark, settings.best_of)
    if unmarked and settings.max_attempts == 1:
        raise ValueError(
            "select=Agreement(...) uses the first attempt for the unmarked text, got max_attempts=1 (or a stream, "
            "which allows only one attempt); allow 2 or more"
        )
    greatest, base = greatest_factor(watermark, policy), edit_margin(watermark, policy, settings.edits)
    first = [Effort(0.0, 0.0)] if unmarked else []
    count = settings.max_attempts - len(first)
    if Mark(watermark, policy).races:
        return first + [Effort(1.0, 0.0)] * (count if watermark.beginning and settings.do_sample else 1)
    weakest = 1 - min(settings.best_of, count)
    numbers = range(weakest, weakest + count)
    return first + [
        Effort(min(GROWTH**number, greatest), min(base + STEP * max(number, 0), MAX_MARGIN)) for number in numbers
    ]


def check_candidates(policy: Policy, watermark: Watermark, best_of: int) -> None:
    """Raise ValueError for candidates of several strengths where there is one strength."""
    if best_of > 1 and Mark(watermark, policy).races:
        raise ValueError(
            f"a race at full strength has one strength, so best_of must be 1, got {best_of}; leave it out, or give EXP "
            "strength='top_k'"
        )


def check_strong(policy: Policy, watermark: Watermark) -> None:
    """Raise ValueError for a policy or a watermark that marks nothing at any strength."""
    if not watermark.full:
        raise ValueError(
            f"detectable_at requires a watermark that marks, got {watermark.name} with delta 0; choose a delta above 0"
        )
    if not policy.max_strength:
        raise ValueError(
            f"detectable_at requires a policy that marks, got {type(policy).__name__} of strength 0; choose a "
            "strength above 0"
        )


def greatest_factor(watermark: Watermark, policy: Policy) -> float:
    """Return the maximum factor of the policy's strength that the watermark's ladder supports, at least 1.

    A race at full strength has no other strength that does not distort: 1.
    """
    if Mark(watermark, policy).races:
        return 1.0
    most = RECORD_SIZE / (policy.max_strength * watermark.full) if watermark.rule == "top_k" else math.inf
    return max(1.0, min(math.floor(most * 1000) / 1000 if most < MAX_STRENGTH else most, MAX_STRENGTH))


def edit_margin(watermark: Watermark, policy: Policy, edits: float) -> float:
    """Return the addition to z that is enough after this share of the tokens is deleted.

    A piece of evidence survives if none of its window + 1 tokens is deleted; z falls with the square root of what
    survives, and varies by about the square root of what is deleted: DETECTED_SHARE of the draws must be enough.
    """
    target = read_target(policy.target)
    if target is None:
        return 0.0
    left = (1 - edits) ** (watermark.window + 1)
    needed = lone_target(target, watermark).quantile + target.margin
    chance = NormalDist().inv_cdf(DETECTED_SHARE) * (1 - left) ** 0.5
    return min(max(0.0, (needed + chance) / left**0.5 - needed), MAX_MARGIN)


def check_early(settings: Settings, watermark: Signature | None, policy: Policy | None) -> None:
    """Raise ValueError if no text could be detected, or options have no effect. policy: None = the plain watermark."""
    refuse_idle(settings)
    check_guarded(settings)
    if settings.level is None:
        return
    mark = check_markable(watermark)
    part = mark.part_for(settings)
    check_strong(policy or FixedStrength(), part)
    check_candidates(policy or FixedStrength(), part, settings.best_of)
    if not mark.foreign:  # those know their lists only with the model's vocabulary
        check_reach(part, level_of(settings.level, mark, part), settings.max_new_tokens)


def check_guarded(settings: Settings, sampled: Sequence[bool] = ()) -> None:
    """Raise ValueError for options that a guard does not go with. sampled: whether each text samples."""
    if settings.guard is None:
        return
    if settings.do_sample or any(sampled):
        raise ValueError(
            "a guard needs greedy text, got do_sample=True; leave guard out: where words are drawn, the race of "
            "caw.EXP(strength='scale') costs nothing"
        )
    for name in ("best_of", "select"):
        if getattr(settings, name) != getattr(USUAL, name):
            raise ValueError(
                f"a guard changes one text and has nothing to select from, got {name}="
                f"{shown(getattr(settings, name))}; leave {name} or guard out"
            )


def refuse_idle(settings: Settings, *others: str) -> None:
    """Raise ValueError for options that have no effect without tests; others: further given arguments."""
    given = [*(name for name in OF_DETECTABLE if getattr(settings, name) != getattr(USUAL, name)), *others]
    if given and settings.level is None:
        raise ValueError(f"{given[0]} requires detectable_at; give e.g. detectable_at=1e-3, or leave it out")
