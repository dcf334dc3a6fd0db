"""Strengths and margins of attempts: from the weakest up, no further than the watermark can follow."""

from typing import Any

import pytest
from decoding.architectures import build, spread_evaluator

import caw
from caw.detectable.efforts import Effort, efforts, steered
from caw.detection import Detector, TokenWeights
from caw.detection.family import alone
from caw.policies import Target
from caw.settings import Settings

KGW, FIXED = caw.KGW(key=1), caw.FixedStrength(1.0, target=1e-3)


def factors(mark: Any, policy: caw.FixedStrength, **options: Any) -> list[float]:
    return [effort.factor for effort in efforts(mark, policy, Settings(detectable_at=1e-3, **options))]


def test_candidates_end_at_the_policys_own_strength_and_attempts_go_beyond_it() -> None:
    assert efforts(KGW, FIXED, Settings(detectable_at=1e-3)) == [
        Effort(1, 0), Effort(1.5, 1), Effort(2.25, 2), Effort(3.375, 3)
    ]  # fmt: skip
    assert efforts(KGW, FIXED, Settings(detectable_at=1e-3, best_of=3)) == [
        Effort(1 / 2.25, 0), Effort(1 / 1.5, 0), Effort(1, 0), Effort(1.5, 1)
    ]  # fmt: skip
    assert efforts(KGW, FIXED, Settings(detectable_at=1e-3, max_attempts=1)) == [Effort(1, 0)]


@pytest.mark.parametrize(
    ("attempts", "candidates", "numbers"), [(2, 2, [0]), (5, 5, [-3, -2, -1, 0]), (4, 2, [-1, 0, 1])]
)
def test_one_attempt_is_unmarked_and_the_others_reach_the_policys_own(
    attempts: int, candidates: int, numbers: list[int]
) -> None:
    settings = Settings(detectable_at=1e-3, max_attempts=attempts, best_of=candidates)
    made = efforts(KGW, FIXED, settings, unmarked=True)
    assert [effort.factor for effort in made] == [0.0, *(pytest.approx(1.5**number) for number in numbers)]


def test_a_race_goes_no_further_than_its_record() -> None:
    mark = caw.EXP(key=1, top_k=40)
    assert factors(mark, FIXED) == [1, 1.5, 2.25, 2.5]
    assert factors(mark, caw.FixedStrength(2.0)) == [1, 1.25, 1.25, 1.25]
    assert factors(mark, caw.FixedStrength(2.5)) == [1, 1, 1, 1]
    for strength in (0.3, 0.7, 1.1, 3.3):
        greatest = factors(caw.EXP(key=1, top_k=7), caw.FixedStrength(strength), max_attempts=20)[-1]
        caw.EXP(key=1, top_k=7).check_strength(greatest * strength)
    assert factors(KGW, FIXED, max_attempts=100)[-1] == 100


def test_the_margin_for_edits_is_what_deleting_takes_from_z() -> None:
    for mark, pieces in ((caw.Unigram(key=1), 1), (KGW, 2), (caw.EXP(key=1, context_width=4), 5)):
        [effort] = efforts(mark, FIXED, Settings(detectable_at=1e-3, edits=0.1, max_attempts=1))
        target = FIXED.target
        assert isinstance(target, Target)
        needed = target.quantile + target.margin
        left = 0.9**pieces
        assert (needed + effort.margin) * left**0.5 == pytest.approx(needed + 1.2816 * (1 - left) ** 0.5, rel=1e-4)
    assert efforts(KGW, FIXED, Settings(detectable_at=1e-3))[0].margin == 0
    assert efforts(caw.EXP(key=1, context_width=64), FIXED, Settings(detectable_at=1e-3, edits=0.9))[-1].margin == 100


def test_a_policy_without_a_target_gets_the_detectors() -> None:
    weights = TokenWeights([1] * 9)  # type: ignore[arg-type]
    plain, own = caw.FixedStrength(0.5), caw.FixedStrength(0.5, target=0.2)
    assert steered(plain, Detector(None, KGW, 1e-2)) == caw.FixedStrength(0.5, target=1e-2) and plain.target is None
    assert steered(own, Detector(None, KGW, 1e-2)) is own
    target = steered(plain, Detector(None, KGW, 1e-2, weights=weights)).target
    assert isinstance(target, Target) and target.weights is weights
    learned = caw.CapacityPolicy(spread_evaluator(build("llama")), beta=0.5)
    made = steered(learned, Detector(None, KGW, 1e-2))
    assert made == caw.CapacityPolicy(learned.evaluator, beta=0.5, target=1e-2)
    assert made.network is learned.network  # type: ignore[attr-defined]


def test_sub_keys_divide_the_level() -> None:
    many, one, third = caw.KGW(key=1, subkeys=64), caw.FixedStrength(), caw.KGW(key=1, subkey=3)
    assert steered(one, Detector(None, many, 1e-3)).target == Target(1e-3)  # the closed loop divides it
    for mark, level in ((third, alone(1e-3, 64)), (caw.KGW(key=1, subkeys=8), 8 / 64 * 1e-3)):
        target = steered(one, Detector(None, many, 1e-3), mark).target
        assert isinstance(target, Target) and target.p_value == pytest.approx(level, rel=1e-3)
    settings = Settings(detectable_at=1e-3, edits=0.1, max_attempts=1)
    margins = [
        efforts(mark, caw.FixedStrength(target=level), settings)[0].margin
        for mark, level in ((many, 1e-3), (KGW, alone(1e-3, 64)), (KGW, 1e-3))
    ]
    assert margins[0] == margins[1] > margins[2]


def test_what_marks_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="requires a policy that marks, got FixedStrength of strength 0"):
        factors(KGW, caw.FixedStrength(0.0))
    with pytest.raises(ValueError, match="got LogitDeltaThreshold of strength 0"):
        factors(KGW, caw.LogitDeltaThreshold(0.0))
    with pytest.raises(ValueError, match="requires a watermark that marks, got kgw with delta 0"):
        factors(caw.KGW(key=1, delta=0.0), FIXED)
