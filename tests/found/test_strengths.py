"""Factors of a policy's strength: from the weakest up, no further than the watermark can follow."""

from __future__ import annotations

import pytest

import caw
from caw.found.strengths import attempt_factors
from caw.settings import Settings

KGW, FIXED = caw.KGW(key=1), caw.FixedStrength(1.0)


def factors(mark: caw.KGW | caw.EXP | caw.SynthID, policy: caw.FixedStrength, **options: object) -> list[float]:
    return attempt_factors(mark, policy, Settings(found_at=1e-3, **options))  # type: ignore[arg-type]


def test_candidates_end_at_the_policys_own_strength_and_attempts_go_beyond_it() -> None:
    assert factors(KGW, FIXED) == [1, 1.5, 2.25, 3.375]
    assert factors(KGW, FIXED, best_of=3) == [1 / 2.25, 1 / 1.5, 1, 1.5]
    assert factors(KGW, FIXED, max_attempts=1) == [1]


def test_a_race_goes_no_further_than_its_record() -> None:
    mark = caw.EXP(key=1, top_k=40)
    found = factors(mark, FIXED)
    assert found == [1, 1.5, 2.25, 2.5]
    mark.check_strength(found[-1])
    assert factors(mark, caw.FixedStrength(2.0)) == [1, 1.25], "greedy texts of equal strength are equal"
    assert factors(mark, caw.FixedStrength(2.0), do_sample=True) == [1, 1.25, 1.25, 1.25]
    for strength in (0.3, 0.7, 1.1, 3.3):
        policy = caw.FixedStrength(strength)
        caw.EXP(key=1, top_k=7).check_strength(factors(caw.EXP(key=1, top_k=7), policy, max_attempts=20)[-1] * strength)


def test_factors_stay_within_what_a_text_may_have() -> None:
    assert factors(KGW, FIXED, max_attempts=100)[-1] == 100


def test_what_cannot_be_strengthened_is_refused_unless_it_need_not_be() -> None:
    with pytest.raises(ValueError, match="strength 0"):
        factors(KGW, caw.FixedStrength(0.0))
    with pytest.raises(ValueError, match=r"strength 1 is all that synthid can follow; lower it, or set max_attempts=1"):
        factors(caw.SynthID(key=1), FIXED)
    assert factors(caw.SynthID(key=1), FIXED, max_attempts=1) == [1]
    assert factors(caw.SynthID(key=1), caw.FixedStrength(0.5)) == [1, 1.5, 2]
