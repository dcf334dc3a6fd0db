"""Expected and measured share of marked texts found, by length."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from caw.detection import Detector
from caw.detection.power import expected_power, power_table
from caw.detection.statistics import tails
from caw.detection.weights import TokenWeights
from caw.testing import assert_close
from caw.watermarks import EXP, KGW, SynthID


@pytest.mark.parametrize("counted", [1, 5, 40])
def test_expected_power_of_green_lists_by_enumeration(counted: int) -> None:
    watermark = KGW(key=1)
    found = sum(
        stats.binom.pmf(h, counted, 0.6) for h in range(counted + 1) if stats.binom.sf(h - 1, counted, 0.25) <= 1e-3
    )
    assert_close(expected_power(watermark, 0.6, counted, 1e-3), found, "tail")


def test_expected_power_of_races_against_draws() -> None:
    watermark, rng = EXP(key=1), np.random.default_rng(0)
    sums = rng.gamma(50, scale=1.5, size=20_000)
    found = int((tails(watermark, sums, np.full(len(sums), 50)).p_values <= 1e-3).sum())
    assert stats.binomtest(found, len(sums), expected_power(watermark, 1.5, 50, 1e-3)).pvalue > 1e-6
    assert_close(expected_power(watermark, 1.0, 50, 1e-3), 1e-3, "tail")


def test_nothing_is_expected_of_tests_that_the_formula_does_not_know() -> None:
    """Weights, mid-p values, other systems' counting, payloads, mean bits, two keys: measured only."""
    texts = np.random.default_rng(0).integers(0, 500, (4, 60))
    weights = TokenWeights(np.random.default_rng(0).integers(0, 4, 500))
    for detector in (
        Detector(None, KGW(key=1), weights=weights),
        Detector(None, KGW(key=1), mid_p=True),
        Detector(None, KGW(key=1), mode="compat"),
        Detector(None, KGW(key=1, payload_bits=4)),
        Detector(None, SynthID("k", depth=4)),
        Detector(None, EXP(key=1, format="vllm-dual")),
    ):
        rows = power_table(list(texts), detector, lengths=(50,))
        assert all(math.isnan(r.expected) and r.texts == 4 and r.measured == 0 for r in rows)
    assert power_table(list(texts), Detector(None, KGW(key=1)), lengths=(50,))[0].expected > 0


@pytest.mark.slow
def test_measured_power_of_independent_tokens_is_the_expected_one() -> None:
    """Tokens that are green with probability 0.6 independently: texts of distinct pairs."""
    watermark, rng = KGW(key=1), np.random.default_rng(0)
    texts = []
    for _ in range(60):
        ids = [int(rng.integers(0, 10**6))]
        while len(ids) < 60:
            options = rng.integers(0, 10**6, 40)
            rows = Detector(None, watermark).score([np.array([ids[-1], o]) for o in options])
            green = [bool(s.values[1]) for s in rows]
            want = rng.random() < 0.6
            ids.append(int(options[green.index(want)]) if want in green else int(options[0]))
        texts.append(ids)
    rows = power_table(texts, Detector(None, watermark), lengths=(20, 50, 60, 80))
    assert [(r.tokens, r.fpr) for r in rows[:4]] == [(20, 1e-3), (20, 1e-5), (50, 1e-3), (50, 1e-5)]
    for row in rows[:6]:
        assert row.texts == 60
        assert stats.binomtest(round(row.measured * 60), 60, row.expected).pvalue > 1e-6
        assert row.low <= row.measured <= row.high
    assert rows[6].texts == 0 and math.isnan(rows[6].measured)
