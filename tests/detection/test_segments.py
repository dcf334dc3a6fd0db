"""The likeliest split of a text into marked and unmarked stretches."""

import itertools

import numpy as np
import pytest
from scipy import stats

from caw.detection.regions import CHANGE, _split, log_ratios, segments
from caw.testing import assert_close
from caw.watermarks import EXP, KGW, SynthID


def test_the_split_is_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    for tokens in (1, 2, 7, 10):
        masks = np.array(list(itertools.product([False, True], repeat=tokens)))
        for _ in range(20):
            ratios = rng.normal(0, 3, tokens)
            gains = masks @ ratios - CHANGE * (masks[:, 1:] != masks[:, :-1]).sum(axis=1)
            marked, gain = _split(ratios)
            assert (marked == masks[gains.argmax()]).all()
            assert_close(gain, gains.max(), "float64")


def test_log_ratios_are_those_of_the_null_laws() -> None:
    counted = np.array([True, True, False])
    green = log_ratios(KGW(key=1), np.array([1.0, 0.0, 1.0]), counted, 0.6)
    assert_close(green, np.array([np.log(0.6 / 0.25), np.log(0.4 / 0.75), 0.0]), "float64")
    race = log_ratios(EXP(key=1), np.array([0.5, 3.0, 9.0]), counted, 2.0)
    expected = stats.expon.logpdf([0.5, 3.0], scale=2.0) - stats.expon.logpdf([0.5, 3.0])
    assert_close(race, np.array([*expected, 0.0]), "float64")
    bits = SynthID(5, depth=8, reading="mean")
    ratios = log_ratios(bits, np.array([0.25, 0.75, 1.0]), counted, 0.6)
    expected = stats.binom.logpmf([2, 6], 8, 0.6) - stats.binom.logpmf([2, 6], 8, bits.bit_fraction)
    assert_close(ratios, np.array([*expected, 0.0]), "float64")


PARTS = [[(0, 600)], [(0, 200)], [(400, 600)], [(200, 400)], [(60, 240), (380, 560)]]


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_ends(parts: list[tuple[int, int]]) -> None:
    """Simulated green lists, 60 % green where marked and 93 % counted: medians over 20 texts."""
    covered, marked, numbers = [], [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        counted, values = rng.random(600) < 0.93, (rng.random(600) < 0.25).astype(float)
        truth, said = np.zeros((2, 600), dtype=bool)
        for start, end in parts:
            values[start:end] = rng.random(end - start) < 0.6
            truth[start:end] = True
        found = segments(KGW(key=1), values, counted, [slice(*parts[0])])
        for start, end in found:
            said[start:end] = True
        covered.append((said & truth).sum() / truth.sum())
        marked.append((said & truth).sum() / said.sum())
        numbers.append(len(found))
    assert np.median(covered) > 0.95 and np.median(marked) > 0.95 and np.median(numbers) == len(parts)
    assert min(covered) > 0.7 and min(marked) > 0.7


def test_nothing_that_counts() -> None:
    assert segments(KGW(key=1), np.zeros(5), np.zeros(5, dtype=bool), [slice(0, 5)]) == []
    assert segments(KGW(key=1), np.zeros(0), np.zeros(0, dtype=bool), [slice(0, 0)]) == []
