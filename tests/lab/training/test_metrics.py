"""Figures of scores against their definitions."""

import numpy as np
from scipy.special import expit

from caw_lab.training import metrics as m


def test_best_threshold_is_the_best():
    key, score = np.random.rand(300) < 0.6, np.random.randint(0, 20, 300) / 20
    chosen = m.best_threshold(key, score)
    f1 = {t: m.figures(key, score, t)["f1"] for t in np.unique(score)}
    assert f1[chosen] == max(f1.values())


def test_reliability_of_a_calibrated_score():
    capacity = expit(np.random.normal(size=50000))
    found = m.reliability(np.random.rand(50000) < capacity, capacity)
    assert found["expected_calibration_error"] < 0.01
    assert sum(count for _, _, count in found["bins"]) == 50000
    assert m.reliability(np.ones(100, dtype=bool), np.full(100, 0.25))["expected_calibration_error"] == 0.75
    assert m.reliability(np.ones(1, dtype=bool), np.ones(1))["bins"] == [[1.0, 1.0, 1]]
