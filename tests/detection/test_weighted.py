"""Tails of weighted sums against the plain ones, a convolution, closed forms and draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from caw.detection import weighted
from caw.detection.weighted import weighted_binomial_bound, weighted_binomial_tail, weighted_gamma_tail
from caw.testing import assert_close


@given(
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 12)), min_size=1, max_size=6),
    st.floats(0.02, 0.9),
    st.integers(-3, 900),
)
def test_binomial_equals_the_convolution(groups: list[tuple[int, int]], fraction: float, total: int) -> None:
    mass = np.array([1.0])
    for weight, count in groups:
        for _ in range(count):
            longer = np.zeros(len(mass) + weight)
            longer[: len(mass)] += (1 - fraction) * mass
            longer[weight:] += fraction * mass
            mass = longer
    w, n = np.array(groups).T
    expected = mass[max(0, total) :].sum()
    assert_close(weighted_binomial_tail(total, w, n, fraction), min(1.0, float(expected)), "weighted")


@pytest.mark.parametrize("hits", [0, 1, 50, 120, 199, 200])
def test_equal_weights_are_the_binomial_tail_however_small(hits: int) -> None:
    expected = stats.binom.logsf(hits - 1, 200, 0.25) if hits else 0.0
    got = weighted_binomial_tail(7 * hits, np.array([7]), np.array([200]), 0.25)
    assert_close(np.log(got), expected, "weighted")
    assert weighted_binomial_tail(7 * hits + 1, np.array([7]), np.array([200]), 0.25) <= got


def test_sums_beyond_the_greatest_and_too_wide_ones() -> None:
    one = np.array([3])
    assert weighted_binomial_tail(31, one, np.array([10]), 0.5) == 0
    with pytest.raises(ValueError, match="sums below"):
        weighted_binomial_tail(10**6, np.array([15]), np.array([weighted.MAX_LATTICE]), 0.5)


@pytest.mark.parametrize("total", [0.5, 3.0, 12.0, 60.0])
def test_two_exponentials_in_closed_form(total: float) -> None:
    """E + 2 E': 2 exp(-x / 2) - exp(-x)."""
    got = weighted_gamma_tail(total, np.array([1, 2]), np.array([1, 1]))
    assert_close(got, 2 * np.exp(-total / 2) - np.exp(-total), "inversion")


@pytest.mark.parametrize("total", [60.0, 90.0, 150.0, 300.0])
def test_nearly_equal_weights_are_nearly_the_gamma_tail(total: float) -> None:
    assert_close(weighted_gamma_tail(2 * total, np.array([2]), np.array([90])), stats.gamma.sf(total, 90), "tail")
    split = weighted_gamma_tail(2 * total, np.array([2, 2 + 1e-12]), np.array([40, 50]))
    assert_close(split, stats.gamma.sf(total, 90), "inversion")


def test_gamma_against_draws() -> None:
    rng = np.random.default_rng(0)
    w, n = np.array([1, 4, 15]), np.array([30, 20, 5])
    draws = sum(wi * rng.gamma(ni, size=200_000) for wi, ni in zip(w, n, strict=True))
    for total in (150.0, 185.0, 260.0, 330.0):
        p = weighted_gamma_tail(total, w, n)
        assert stats.binomtest(int((draws >= total).sum()), len(draws), p).pvalue > 1e-6
    assert weighted_gamma_tail(0.0, w, n) == 1 and weighted_gamma_tail(5.0, np.array([0, 3]), np.array([4, 0])) == 1


@pytest.mark.parametrize("fraction", [0.5, 0.2])
@pytest.mark.parametrize("weights", [[10, 1], [7, 5, 3, 2], [1, 1, 1]], ids=str)
def test_the_bound_is_never_below_the_tail_and_not_far_above(weights: list[int], fraction: float) -> None:
    w, trials = np.array(weights), 40
    totals = np.arange(int(w.sum()) * trials + 1)
    bound = weighted_binomial_bound(totals, np.full(len(totals), trials), w, fraction)
    exact = np.array([weighted_binomial_tail(int(t), w, np.full(len(w), trials), fraction) for t in totals])
    assert (bound >= exact * (1 - 1e-9)).all() and (bound[totals < trials * fraction * w.sum()] == 1).all()
    small = (exact < 1e-3) & (exact > 0)
    assert (bound[small] < 100 * exact[small]).all() and np.median(bound[small] / exact[small]) < 30
