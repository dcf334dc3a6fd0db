"""Tails against exact rational arithmetic and against scipy.stats."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from caw.detection.family import alone
from caw.detection.statistics import binomial_tails, fewest_for, gamma_tails, tails
from caw.testing import assert_close, tolerance
from caw.watermarks import EXP, KGW, Unigram

FRACTIONS = [2**-24, 0.1, 0.25, 0.5, 0.9]


def exact_binomial(hits: int, count: int, fraction: float) -> Fraction:
    p = Fraction(fraction)
    return sum((math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(hits, count + 1)), Fraction(0))


def exact_gamma(total: float, count: int) -> float:
    x, term, found = Fraction(total), Fraction(1), Fraction(0)
    for k in range(count):
        found += term
        term = term * x / (k + 1)
    # exp is the only rounding: the rational sum is scaled by it in logarithms
    return math.exp(math.log(found.numerator) - math.log(found.denominator) - total)


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("count", [1, 2, 7, 40, 97])
def test_binomial_tail_is_exact(fraction: float, count: int) -> None:
    hits = np.arange(count + 1)
    got = binomial_tails(hits, np.full(count + 1, count), fraction)
    for hit, p in zip(hits.tolist(), got.p_values.tolist(), strict=True):
        exact = float(exact_binomial(hit, count, fraction))
        assert math.isclose(p, exact, rel_tol=tolerance("tail").peak), (hit, p, exact)
    assert got.p_values[0] == 1.0
    deviation = math.sqrt(count * fraction * (1 - fraction))
    assert_close(got.z_scores, (hits - count * fraction) / deviation, "float64")


@pytest.mark.parametrize("count", [1, 2, 7, 40, 97])
def test_gamma_tail_is_exact(count: int) -> None:
    totals = np.array([0.0, 1e-9, 0.5, count / 2, count, 2.5 * count, 12.0 * count])
    got = gamma_tails(totals, np.full(len(totals), count))
    for total, p in zip(totals.tolist(), got.p_values.tolist(), strict=True):
        assert math.isclose(p, exact_gamma(total, count), rel_tol=tolerance("tail").peak)
    assert_close(got.z_scores, (totals - count) / math.sqrt(count), "float64")


@given(count=st.integers(1, 5000), share=st.floats(0, 1), fraction=st.sampled_from(FRACTIONS))
def test_tails_equal_scipys(count: int, share: float, fraction: float) -> None:
    hits, total = np.array([round(share * count)]), np.array([share * 3 * count])
    p = binomial_tails(hits, np.array([count]), fraction).p_values[0]
    assert math.isclose(p, stats.binom.sf(hits[0] - 1, count, fraction), rel_tol=1e-6, abs_tol=5e-324)
    q = gamma_tails(total, np.array([count])).p_values[0]
    assert math.isclose(q, stats.gamma.sf(total[0], count), rel_tol=tolerance("tail").peak, abs_tol=5e-324)


def test_nothing_counted_gives_p_one() -> None:
    zero = np.zeros(2)
    for got in (binomial_tails(zero, zero, 0.25), gamma_tails(zero, zero)):
        assert got.p_values.tolist() == [1.0, 1.0] and got.z_scores.tolist() == [0.0, 0.0]


def test_tails_follow_the_watermarks_null() -> None:
    scores, counts = np.array([30.0]), np.array([60])
    for watermark in (KGW(key=1, gamma=0.3), Unigram(key=1, gamma=0.3)):
        expected = stats.binom.sf(29, 60, int(0.3 * 2**24) / 2**24)
        assert_close(tails(watermark, scores, counts).p_values, [expected], "tail")
    assert_close(tails(EXP(key=1), scores, counts).p_values, [stats.gamma.sf(30, 60)], "tail")


@pytest.mark.parametrize("gamma, fpr", zip([0.01, 0.25, 0.5, 0.99], [0.5, 1e-3, 0.0625, 1e-9], strict=True))
def test_fewest_for_is_the_least_count_that_can_decide(gamma: float, fpr: float) -> None:
    watermark = KGW(key=1, gamma=gamma)
    n = fewest_for(watermark, fpr)
    best = binomial_tails(np.array([n - 1, n]), np.array([n - 1, n]), watermark.green_fraction).p_values
    assert best[1] <= fpr * (1 + 1e-9) and (n == 1 or best[0] > fpr)
    assert fewest_for(EXP(key=1), fpr) == 1
    assert fewest_for(KGW(key=1, gamma=gamma, subkeys=64), fpr) == fewest_for(watermark, alone(fpr, 64))
