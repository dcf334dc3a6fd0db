"""Likelihood ratios of drawn tokens: what they are, and that their null is exact for any levels."""

import itertools

import numpy as np
import pytest
from scipy import stats

from caw.detection.ratios import RATIO_LEVELS, SLIP, STEP, ratio_levels, ratio_steps, ratio_tail, ratio_tails


def values_of(uniform: np.ndarray) -> np.ndarray:
    return -np.log1p(-uniform)


def test_a_step_is_the_likelihood_ratio() -> None:
    """Against the density of the winner's uniform number, F^(1/q - 1) / q, and one in a hundred not drawn at all."""
    for share, uniform in itertools.product((0.9, 0.5, 0.1, 1e-3), (0.05, 0.5, 0.9, 0.999, 1 - 1e-7)):
        [level] = ratio_levels(np.array([share]))
        near = np.array([share, share * 1.31, share / 1.31])
        own = [q for q in near[near < 1] if ratio_levels(np.array([q]))[0] == level]
        assert own, "levels are a fourth apart"
        [steps] = ratio_steps(values_of(np.array([uniform])), np.array([level]))
        # probabilities of a level are a factor of 1.3 apart at most, in the odds: the ratio lies between those of both
        odds = (1 - share) / share * np.array([1 / 1.15, 1.15])
        q = 1 / (1 + odds)
        ratio = np.log(SLIP + (1 - SLIP) * uniform ** (1 / q - 1) / q)
        found = (steps + np.floor(np.log(SLIP) / STEP)) * STEP
        assert min(ratio) - STEP <= found <= max(ratio) + STEP


def test_levels_rise_as_the_probability_falls() -> None:
    shares = np.array([0.0, 1.0, 0.999, 0.9, 0.5, 0.1, 1e-2, 1e-4, 1e-9])
    assert ratio_levels(shares)[:3].tolist() == [0, 0, 0]
    assert (np.diff(ratio_levels(shares)[2:-1]) > 0).all() and ratio_levels(shares)[-1] == RATIO_LEVELS


def test_the_tail_of_one_token_is_that_of_its_uniform_number() -> None:
    for level in (1, 7, 20, 40, 63):
        trials = np.bincount([level], minlength=RATIO_LEVELS + 1)
        for uniform in (0.2, 0.7, 0.99, 1 - 1e-6):
            [steps] = ratio_steps(values_of(np.array([uniform])), np.array([level]))
            p = ratio_tail(int(steps), trials)
            assert p >= (1 - uniform) * (1 - 1e-9), "rounding down never makes a p-value too small"
            # the probability that a uniform number reaches this step, by bisection on the step itself
            low, high = 0.0, 1.0
            for _ in range(60):
                middle = (low + high) / 2
                reached = ratio_steps(values_of(np.array([middle])), np.array([level]))[0] >= steps
                low, high = (low, middle) if reached else (middle, high)
            assert p == pytest.approx(1 - high, rel=1e-6, abs=1e-15)


def test_the_tail_of_several_is_the_convolution() -> None:
    """Every sum of three tokens, against the masses multiplied out."""
    levels = [3, 30, 50]
    masses = []
    for level in levels:
        trials = np.bincount([level], minlength=RATIO_LEVELS + 1)
        tail = np.array([ratio_tail(k, trials) for k in range(700)])
        masses.append(tail - np.append(tail[1:], 0))
    whole = np.convolve(np.convolve(masses[0], masses[1]), masses[2])
    expected = np.cumsum(whole[::-1])[::-1]
    trials = np.bincount(levels, minlength=RATIO_LEVELS + 1)
    for total in (1, 50, 200, 300, 400, 500, 600, int(np.flatnonzero(expected > 1e-12)[-1])):
        assert ratio_tail(total, trials) == pytest.approx(expected[total], rel=1e-6)
    assert ratio_tail(0, trials) == 1 and ratio_tail(5000, trials) == 0
    assert ratio_tail(0, np.zeros(RATIO_LEVELS + 1, dtype=np.int64)) == 1


@pytest.mark.parametrize("tokens", [1, 7, 101])
def test_p_values_of_unmarked_text_are_uniform(tokens: int) -> None:
    """False-alarm rate of each test below: 1e-4."""
    rng = np.random.default_rng(tokens)
    levels = ratio_levels(np.exp(-rng.exponential(1.5, tokens)))
    levels[levels == 0] = 1
    texts = 100
    values, owner = values_of(rng.random(tokens * texts)), np.repeat(np.arange(texts), tokens)
    sums, found = ratio_tails(values, np.tile(levels, texts), owner, np.ones(len(values), dtype=bool), texts)
    for level in (0.1, 0.01):
        alarms = int((found.p_values <= level).sum())
        assert stats.binomtest(alarms, texts, level, "greater").pvalue > 1e-4
    assert stats.kstest(found.p_values, "uniform", alternative="greater").pvalue > 1e-4
    if tokens > 1:  # the lattice is fine
        assert stats.kstest(found.p_values, "uniform").pvalue > 1e-4
    assert abs(found.z_scores.mean()) < 5 / np.sqrt(texts) and sums.shape == (texts,)


def test_power_is_that_of_the_likelihood_ratio() -> None:
    """Marked texts of 12 tokens, found at 1e-3, against the exact test by simulation; .01 is rounding's cost."""
    rng = np.random.default_rng(0)
    tokens, texts, level = 18, 300, 1e-3
    shares = np.linspace(0.15, 0.95, tokens)
    marked = rng.random((texts, tokens)) ** shares
    levels = np.tile(ratio_levels(shares), texts)
    owner = np.repeat(np.arange(texts), tokens)
    found = ratio_tails(values_of(marked).ravel(), levels, owner, levels > 0, texts)[1].p_values <= level

    def exact(uniform: np.ndarray) -> np.ndarray:
        return (-np.log(shares) + (1 / shares - 1) * np.log(uniform)).sum(axis=1)

    drawn = np.sort(exact(rng.random((20_000, tokens)) ** shares))[::-1]
    tail = np.cumsum(np.exp(-drawn)) / len(drawn)  # P0(ratio >= x) = E1[exp(-ratio); ratio >= x]
    bound = (tail <= level).mean()
    assert 0.3 < bound < 0.95 and abs(found.mean() - bound) < 4 * np.sqrt(bound * (1 - bound) / texts) + 0.01
