"""Recommended: one key for all texts. What is drawn is raced for at no cost, what is greedy gets green lists.

Two families of marks under one secret, separated by the domains that their keys are derived for (`keys.derive_key`):

    drawn    EXP(key derived for domain `caw/recommended/drawn`, strength="scale", context_width=2), at full strength
    greedy   KGW(the key itself, which KGW derives for `caw/kgw`), under CAW, until the text is detectable

So whoever marked with KGW before finds those texts under the same key.

A detector tests for both. Under the null their p-values are independent, so the smaller of two is p or less with
probability 1 - (1 - p)^2: a text's p-value is that, and a greedy text has to reach 1 - (1 - p)^(1/2) alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NoReturn

import torch

from caw.checks import require_int, require_number
from caw.defaults import RECOMMENDED_TARGET, RECOMMENDED_WIDTH
from caw.io.show import shown
from caw.ladder import Ladder, Rule
from caw.watermarks.base import Position, TokenScores, Watermark
from caw.watermarks.exp import EXP
from caw.watermarks.keys import derive_key
from caw.watermarks.kgw import KGW

DRAWN = b"caw/recommended/drawn"


@dataclass(frozen=True)
class Recommended(Watermark):
    """The watermark to use if nothing speaks for another; it brings its own policies.

    A text that is drawn (`do_sample=True`) gets the exponential race at full strength: over keys it is distributed as
    the model's own, so the mark costs nothing; its first tokens are drawn without the key (`EXP`, free). A greedy text
    has no chance to hide a mark in, and one drawn below temperature 0.3 too little (`caw.settings.LEAST_RACED`): they
    get green lists, as strongly as CAW allows each token, until their p-value is `target`. Without an evaluator that
    serves the model they have them at strength 1.

    One detector reads both, and its result says which of them it found (`DetectionResult.family`).

    Args:
        key: int below 2^64, text or bytes.
        target: p-value in (0, 1) at which the marking of a greedy text may rest, by the detector of both families. Of
            texts that are tested, the smaller of the two levels.
        evaluator: of the policy for greedy texts, a shipped name or a .safetensors file; None = the model's own.

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
        """The watermark of texts that are drawn."""
        return EXP(derive_key(self.secret, DRAWN), strength="scale", context_width=RECOMMENDED_WIDTH)

    @cached_property
    def greedy(self) -> KGW:
        """The watermark of greedy texts."""
        return KGW(self.secret)

    def of(self, *, raced: bool) -> EXP | KGW:
        """The watermark of a text; raced: whether it is the race, as `caw.settings.gets_race` decides."""
        return self.drawn if raced else self.greedy

    @property
    def parts(self) -> tuple[Watermark, ...]:
        return self.drawn, self.greedy

    def level_of_each(self, level: float) -> float:
        """The p-value that a text must have in its own family to have `level` in both: 1 - (1 - level)^(1/2)."""
        return -math.expm1(math.log1p(-level) / len(self.parts))

    @property
    def window(self) -> int:
        """W of the family that reads more."""
        return max(part.window for part in self.parts)

    @property
    def rule(self) -> Rule:
        return self.greedy.rule

    @property
    def full(self) -> float:
        return self.greedy.full

    @property
    def family(self) -> int:
        return sum(part.family for part in self.parts)

    def under_subkey(self, number: int) -> Watermark:
        """The watermark of one part: 0 is the race, 1 the green list."""
        require_int("number", number, 0, len(self.parts) - 1)
        return self.parts[number]

    def ladder(self, position: Position, max_strength: float) -> Ladder:
        self._of_one_family()

    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        self._of_one_family()

    def _of_one_family(self) -> NoReturn:
        raise ValueError(
            "tokens are marked and scored in one family, got a Recommended, which has two; give its .drawn or .greedy"
        )
