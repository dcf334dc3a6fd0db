"""Intervals and paired tests against theory and brute force."""

import math

import numpy as np
import pytest
from scipy import stats

from caw.testing import assert_close
from caw_lab.evaluation.metrics.accuracy import (
    Outcomes,
    compare,
    difference_interval,
    equal_detection,
    interval,
    mcnemar,
    resampled,
    share_interval,
    sign_flip,
    wilson,
)


@pytest.mark.parametrize(("right", "total"), [(0, 10), (3, 10), (10, 10), (27, 100), (1, 1319)])
def test_wilson_is_what_scipy_says(right: int, total: int) -> None:
    expected = stats.binomtest(right, total).proportion_ci(method="wilson")
    assert_close(wilson(right, total), [expected.low, expected.high], "tail")
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("share", "keys"), [(0.5, 1), (0.9, 5), (0.98, 3), (0.02, 1)])
def test_the_interval_of_a_share_over_keys_covers_the_truth(share: float, keys: int) -> None:
    """400 worlds of 100 questions, some harder than others: fewer than 353 hold it with probability 1e-3 if 92 % do, as
    Wilson's intervals of such shares."""
    rng, inside = np.random.default_rng(6), 0
    for _ in range(400):
        right = rng.binomial(keys, rng.beta(2 * share, 2 * (1 - share), 100))
        low, high = share_interval(right, np.full(100, keys))
        inside += low <= share <= high
    assert inside >= 353


def test_the_interval_of_a_share_of_one_key_is_wilsons_and_equal_keys_say_no_more() -> None:
    right = np.array([1, 0, 1, 1, 0, 1, 1])
    assert_close(share_interval(right, np.ones(7)), wilson(5, 7), "float64")
    assert_close(share_interval(5 * right, np.full(7, 5)), wilson(5, 7), "float64")
    assert share_interval(np.full(7, 5), np.full(7, 5)) == wilson(7, 7)
    assert share_interval(np.zeros(3), np.zeros(3)) == (0.0, 1.0)
    # independent keys are as good as questions
    rng = np.random.default_rng(7)
    low, high = share_interval(rng.binomial(5, 0.5, 4000), np.full(4000, 5))
    least, most = wilson(10_000, 20_000)
    assert 0.97 < (high - low) / (most - least) < 1.05


@pytest.mark.parametrize(("more", "less"), [(0.09, 0.01), (0.1, 0.1), (0.2, 0.05)])
def test_the_interval_of_a_difference_covers_the_truth(more: float, less: float) -> None:
    """400 worlds: fewer than 366 hold the truth with probability 1e-3 if 95 % do."""
    rng, inside = np.random.default_rng(8), 0
    for _ in range(400):
        drawn = rng.random(100)
        ends = difference_interval((drawn < more).astype(float) - ((drawn >= more) & (drawn < more + less)))
        assert ends is not None
        inside += ends[0] <= more - less <= ends[1]
    assert inside >= 366


def test_questions_that_all_agree_do_not_prove_that_all_would() -> None:
    assert difference_interval(np.array([])) is None
    ends = difference_interval(np.zeros(100))
    assert ends is not None and -0.04 < ends[0] == -ends[1] < -0.01


@pytest.mark.parametrize(("a", "b"), [(0, 0), (1, 0), (3, 3), (2, 9), (0, 12)])
def test_mcnemar_is_a_sum_of_binomial_terms(a: int, b: int) -> None:
    n = a + b
    tail = sum(math.comb(n, k) for k in range(min(a, b) + 1)) / 2**n
    assert_close(mcnemar(a, b), min(1.0, 2 * tail), "tail")


def outcomes(name: str, right: list[int], strength: float | None = None, **measures: list[float]) -> Outcomes:
    found = {k: np.array(v, dtype=float)[:, None] for k, v in measures.items()}
    return Outcomes(name, np.array(right, dtype=float)[:, None], found, strength)


def test_a_comparison_counts_the_questions_that_differ() -> None:
    a, b = outcomes("a", [1, 1, 1, 0, 0, 1]), outcomes("b", [0, 0, 1, 0, 1, 0])
    row = compare(a, b)
    assert (row["better_a"], row["better_b"], row["n"], row["test"]) == (3, 1, 6, "mcnemar")
    assert row["p_value"] == mcnemar(3, 1)
    assert_close(row["difference"], 2 / 6, "float64")
    low, high = row["difference_ci"]  # type: ignore[misc]
    assert -1 / 3 <= low < 1 / 3 < high <= 1 and compare(a, b) == row


def test_several_keys_of_a_question_are_one_pair() -> None:
    rng = np.random.default_rng(0)
    base = (rng.random(40) < 0.5).astype(float)
    repeated = Outcomes("a", np.repeat(base[:, None], 5, axis=1), {})
    other = Outcomes("b", np.repeat(1 - base[:, None], 5, axis=1), {})
    single = compare(Outcomes("a", base[:, None], {}), Outcomes("b", 1 - base[:, None], {}))
    pooled = compare(repeated, other)
    # equal keys say no more than one of them
    assert pooled["difference_ci"] == single["difference_ci"] and pooled["test"] == "sign-flip"
    assert abs(pooled["p_value"] - single["p_value"]) < 0.03  # type: ignore[operator]
    assert sign_flip(np.zeros(5)) == 1.0 and sign_flip(np.full(30, 1.0)) <= 2 / 10_001


def test_resampling_draws_as_many_questions_and_is_repeatable() -> None:
    drawn = resampled(17, 50)
    assert drawn.shape == (50, 17) and (drawn.sum(axis=1) == 17).all() and (resampled(17, 50) == drawn).all()
    assert interval(np.array([np.nan, np.nan])) is None and interval(np.array([np.nan, 1.0])) == (1.0, 1.0)


def curve() -> list[Outcomes]:
    return [
        outcomes("none", [1, 1, 1, 1], 0.0, tpr_at_fpr_1e2=[0, 0, 0, 0]),
        outcomes("hard", [0, 0, 0, 0], 8.0, tpr_at_fpr_1e2=[1, 1, 1, 1]),
        outcomes("soft", [1, 1, 0, 0], 2.0, tpr_at_fpr_1e2=[1, 0, 1, 0]),
    ]


@pytest.mark.parametrize(("found", "right", "expected_fixed"), [
    ([1, 1, 1, 0], [1, 1, 0, 0], 0.25), ([1, 0, 0, 0], [1, 1, 1, 0], 0.75), ([1, 1, 0, 0], [1, 0, 0, 0], 0.5),
])  # fmt: skip
def test_equal_detection_reads_the_curve_of_fixed_strengths(
    found: list[int], right: list[int], expected_fixed: float
) -> None:
    target = outcomes("caw", right, tpr_at_fpr_1e2=found)
    row = equal_detection(target, curve(), "tpr_at_fpr_1e2")
    assert row is not None and row["curve"] == ["none", "soft", "hard"] and row["inside"] is True
    assert_close(row["accuracy_fixed"], expected_fixed, "float64")
    assert_close(row["difference"], np.mean(right) - expected_fixed, "float64")
    low, high = row["difference_ci"]  # type: ignore[misc]
    assert low <= row["difference"] <= high  # type: ignore[operator]


def test_beyond_the_curve_its_end_is_taken_and_said() -> None:
    fixed = [f for f in curve() if f.policy != "hard"]
    row = equal_detection(outcomes("caw", [1, 0, 0, 0], tpr_at_fpr_1e2=[1, 1, 1, 0]), fixed, "tpr_at_fpr_1e2")
    assert row is not None and row["inside"] is False and row["accuracy_fixed"] == 0.5


def test_where_strengths_are_found_alike_the_weakest_counts() -> None:
    """Otherwise a policy would seem better by being compared with needless strength."""
    fixed = [
        outcomes("none", [1, 1], 0.0, z_mean=[0.0, 0.0]),
        outcomes("soft", [1, 0], 2.0, z_mean=[4.0, 4.0]),
        outcomes("hard", [0, 0], 8.0, z_mean=[4.0, 4.0]),
    ]
    row = equal_detection(outcomes("caw", [1, 0], z_mean=[4.0, 4.0]), fixed, "z_mean")
    assert row is not None and row["accuracy_fixed"] == 0.5 and row["difference"] == 0.0
