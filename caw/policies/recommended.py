"""Recommended: one key for all texts. What is drawn is raced for at no cost, what is greedy gets green lists.

Two marks under one secret, separated by the domains that their keys are derived for (`keys.derive_key`):

    drawn    EXP(key derived for domain `caw/recommended/drawn`, strength="scale", context_width=2), at full strength
    greedy   KGW(the key itself, which KGW derives for `caw/kgw`), at full strength until the text is detectable

So whoever marked with KGW before finds those texts under the same key.

A detector tests for both. Under the null their p-values are independent, so the smaller of two is p or less with
probability 1 - (1 - p)^2: a text's p-value is that, and a greedy text has to reach 1 - (1 - p)^(1/2) alone.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from caw.checks import require_int, require_number
from caw.defaults import RECOMMENDED_TARGET, RECOMMENDED_WIDTH
from caw.io.show import shown
from caw.policies.base import MAX_STRENGTH
from caw.policies.capacity import CapacityPolicy
from caw.policies.fixed import FixedStrength
from caw.policies.mark import Mark
from caw.settings import Sampling, greedy_if_one_token
from caw.watermarks import EXP, KGW, Signature, Watermark
from caw.watermarks.keys import derive_key

DRAWN = b"caw/recommended/drawn"
RowT = TypeVar("RowT", bound=Sampling)


@dataclass(frozen=True)
class Recommended(Signature):
    """The rule to use if nothing speaks for another: which watermark marks a text, and under which policy.

    A text that is drawn (`do_sample=True`) gets the exponential race at full strength: over keys it is distributed as
    the model's own, so the mark costs nothing; its first tokens are drawn without the key (`EXP`, free). A greedy text
    has no chance to hide a mark in, and one drawn below temperature 0.3 too little (`caw.settings.LEAST_RACED`): they
    get green lists until their p-value is `target`, at strength 1: it changes the tokens whose change costs least, and
    in whole everyday texts no evaluator was shown to cost less. In calculations `universal-answers` found more texts of
    a 1.5B model and kept more answers, of a 0.5B as many; it looks ahead, which no engine does, so it has to be named.

    One detector reads both, and its result says which of them it found (`DetectionResult.family`).

    Args:
        key: int below 2^64, text or bytes.
        target: p-value in (0, 1) at which the marking of a greedy text may rest, by the detector of both families. Of
            texts that are tested, the smaller of the two levels.
        evaluator: of the policy for greedy texts, a shipped name or a .safetensors file; None = strength 1.

    Raises TypeError or ValueError naming the argument.
    """

    target: float = RECOMMENDED_TARGET
    evaluator: str | None = None

    name: ClassVar[str] = "recommended"

    def validate(self) -> None:
        require_number("target", self.target, 0, 1, closed=False)
        if self.evaluator == "":
            raise ValueError("evaluator must name an evaluator, got ''; pass e.g. 'smollm2-135m', or leave it out")
        if not isinstance(self.evaluator, str | None):
            raise TypeError(
                f"evaluator must be the name of a shipped evaluator, a path as a str, or None, got "
                f"{shown(self.evaluator)}; pass e.g. 'smollm2-135m'"
            )

    @cached_property
    def drawn(self) -> EXP:
        return EXP(derive_key(self.secret, DRAWN), strength="scale", context_width=RECOMMENDED_WIDTH)

    @cached_property
    def greedy(self) -> KGW:
        return KGW(self.secret)

    def of(self, sampling: Sampling, level: float | None = None) -> Mark:
        """Return what marks a text that is chosen like this. level: p-value at which texts are tested, None = no test.

        Raises what `CapacityPolicy` raises for an evaluator that cannot be loaded.
        """
        watermark = self.part_for(sampling)
        if watermark is self.drawn:
            return Mark(watermark, FixedStrength(1.0))
        target = self.level_of_each(self.target if level is None else min(level, self.target))
        if self.evaluator is None:
            return Mark(watermark, FixedStrength(1.0, target=target))
        return Mark(watermark, CapacityPolicy(self.evaluator, target=target))

    def part_for(self, sampling: Sampling) -> EXP | KGW:
        return self.drawn if sampling.races else self.greedy

    @property
    def parts(self) -> tuple[Watermark, ...]:
        return self.drawn, self.greedy

    def level_of_each(self, level: float) -> float:
        """The p-value that a text must have in its own family to have `level` in both: 1 - (1 - level)^(1/2)."""
        return -math.expm1(math.log1p(-level) / len(self.parts))

    def under_subkey(self, number: int) -> Watermark:
        """The watermark of one part: 0 is the race, 1 the green list."""
        require_int("number", number, 0, len(self.parts) - 1)
        return self.parts[number]


def mark_of(watermark: Any, policy: Any, sampling: Sampling, level: float | None = None) -> Mark:
    """Return what marks a text: by a caller's watermark and policy, or a rule, where a policy is a ValueError."""
    if not isinstance(watermark, Recommended):
        return Mark(watermark, FixedStrength(1.0) if policy is None else policy)
    if policy is not None:
        raise ValueError(
            f"a Recommended brings its own policies, got {type(policy).__name__} as well; leave policy out, or give "
            "caw.KGW or caw.EXP"
        )
    return watermark.of(sampling, level)


def row_of(watermark: Any, row: RowT) -> RowT:
    """Return the settings of a text as its mark takes them: those given, but for a rule.

    Sampling from one token becomes greedy. Green lists add their bonus to logits that the temperature has divided; in a
    text that is drawn below LEAST_RACED the strength is divided by it too, so that the bonus is worth what it is in a
    greedy text. Without that the lists are not found either.
    """
    if not isinstance(watermark, Recommended):
        return row
    row = greedy_if_one_token(row)
    factor = getattr(row, "strength_factor", None)
    if factor is None or row.races or not row.do_sample:
        return row
    changes: dict[str, Any] = {"strength_factor": min(factor / row.temperature, MAX_STRENGTH)}
    return replace(row, **changes)


@dataclass(frozen=True)
class Marks:
    """The marks that the texts of one decoder may get.

    given: the caller's watermark, which detectors read. main: of texts that do not race, or of all; its watermark may
    be None. race: of those that a rule lets race, None = `main` marks all.
    """

    given: Any
    main: Mark
    race: Mark | None

    @classmethod
    def of(cls, watermark: Any, policy: Any, level: float | None = None) -> "Marks":
        """Return the marks of a caller's watermark and policy; raises what `mark_of` raises."""
        main, race = (mark_of(watermark, policy, Sampling(do_sample=drawn), level) for drawn in (False, True))
        return cls(watermark, main, None if race.watermark is main.watermark else race)

    def kind(self, sampling: Sampling) -> Mark:
        """Return what marks a text that is chosen like this, under the caller's key."""
        return self.main if self.race is None or not sampling.races else self.race

    def under(self, key: Any, sampling: Sampling) -> Mark | None:
        """Return what marks a text under its own key (None = the caller's); None if `main` marks all texts."""
        if self.race is None:
            return None
        given = self.given if key is None else self.given.with_key(key)
        return Mark(given.part_for(sampling), self.kind(sampling).policy)
