"""The family of a text and its windows: which windows, their shares of the level, and that the rate is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from caw.detection import Detector
from caw.detection.statistics import holm
from caw.detection.windows import SHORTEST, WHOLE_SHARE, shares_of, window_p_values, windows_of
from caw.testing import assert_close
from caw.watermarks import EXP, KGW, SynthID, Unigram, Watermark


@pytest.mark.parametrize("tokens", [0, 1, SHORTEST, SHORTEST + 1, 97, 1000])
def test_windows(tokens: int) -> None:
    windows = windows_of(tokens)
    assert windows[0].tolist() == [0, tokens] and len(np.unique(windows, axis=0)) == len(windows)
    assert (windows[:, 0] >= 0).all() and (windows[:, 1] <= tokens).all()
    assert (windows[1:, 1] - windows[1:, 0] >= SHORTEST).all() and len(windows) <= 2 + 1.5 * tokens
    (result,) = Detector(None, KGW(key=1), regions=True)([list(range(tokens))])  # type: ignore[misc]
    assert result.regions == () and not result.is_watermarked


@pytest.mark.parametrize("tokens", [1, SHORTEST, SHORTEST + 1, 97, 1000])
def test_shares(tokens: int) -> None:
    windows = windows_of(tokens)
    shares = shares_of(windows)
    assert_close(shares.sum(), 1.0, "float64")
    assert shares[0] == (1.0 if len(windows) == 1 else WHOLE_SHARE)
    sizes = windows[1:, 1] - windows[1:, 0]
    of_each = [shares[1:][sizes == size].sum() for size in np.unique(sizes)]
    assert_close(np.array(of_each), np.full(len(of_each), (1 - WHOLE_SHARE) / max(1, len(of_each))), "float64")


def step_down(p: np.ndarray, shares: np.ndarray, level: float) -> set[int]:
    """Holm's weighted procedure as published: reject the least p / share while it is within its share of the level."""
    left = set(range(len(p)))
    while left:
        i = min(left, key=lambda i: p[i] / shares[i])
        if p[i] > level * shares[i] / sum(shares[j] for j in left):
            break
        left.remove(i)
    return set(range(len(p))) - left


def test_holm_with_shares_is_the_step_down_procedure() -> None:
    rng = np.random.default_rng(0)
    for m in (1, 2, 3, 11):
        for _ in range(50):
            p, shares = rng.random(m) ** 4, rng.dirichlet(np.full(m, rng.choice([1.0, 1e9])))  # equal ones too
            corrected = holm(p, shares)
            for level in (0.5, 0.1, 0.01):
                assert set(np.flatnonzero(corrected <= level).tolist()) == step_down(p, shares, level)
            assert_close(corrected.min(), min(1.0, float((p / shares).min())), "float64")


MAKERS: dict[str, Callable[[int], Watermark]] = {
    "kgw": lambda key: KGW(key=key),
    "selfhash": lambda key: KGW(key=key, seeding="selfhash"),
    "unigram": lambda key: Unigram(key=key),
    "exp": lambda key: EXP(key=key, context_width=1),
    "synthid": lambda key: SynthID(key, depth=8, ngram_len=2, reading="mean"),
    "transformers": lambda key: KGW(key=key, format="transformers", vocab_size=60),
}


@pytest.mark.parametrize("name", MAKERS)
def test_family_wise_rate(name: str) -> None:
    """Fresh keys, texts that repeat themselves: at most the promised share is called marked. False alarms: 1e-6."""
    rng, count, rate = np.random.default_rng(2), 120, 0.1
    found = 0
    for _ in range(count):
        detector = Detector(None, MAKERS[name](int(rng.integers(0, 2**62))), rate, regions=True)
        result: Any = detector(rng.integers(0, 60, 200).tolist())
        assert result.is_watermarked == bool(result.regions) == (result.p_value <= rate)
        found += result.is_watermarked
    assert stats.binomtest(found, count, rate, "greater").pvalue > 1e-6


def test_the_rate_needs_the_correction() -> None:
    """Simulated null scores: the family keeps its rate, and the same windows without correction do not."""
    rng, watermark, rate = np.random.default_rng(3), KGW(key=1), 0.05
    windows = windows_of(300)
    shares, count = shares_of(windows), 2000
    least, family = np.empty(count), np.empty(count)
    for i in range(count):
        p = window_p_values(windows, (rng.random(300) < 0.25).astype(float), rng.random(300) < 0.8, watermark)
        least[i], family[i] = p.min(), holm(p, shares).min()
    assert stats.binomtest(int((family <= rate).sum()), count, rate, "greater").pvalue > 1e-6
    assert (least <= rate).mean() > 0.5


def test_weighted_bits_take_few_exact_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    """What broke: 12 s for 100 tokens of SynthID text. The others are bounded, and those that matter are exact."""
    from caw.detection import windows as module

    watermark, rng = SynthID(3, depth=6), np.random.default_rng(4)
    values, counted = rng.random((80, 6)) < 0.5, np.ones(80, dtype=bool)
    values[30:60] = rng.random((30, 6)) < 0.75
    scores = values @ watermark.layer_weights / watermark.layer_weights.sum()
    windows = windows_of(80)
    asked: list[int] = []
    real = module.tails
    monkeypatch.setattr(module, "tails", lambda mark, sums, counts: asked.append(len(sums)) or real(mark, sums, counts))
    p = window_p_values(windows, scores, counted, watermark)
    assert asked == [module.EXACT] or asked == [module.EXACT + 1]
    monkeypatch.setattr(module, "EXACT", len(windows))
    exact = window_p_values(windows, scores, counted, watermark)
    assert (p >= exact * (1 - 1e-9)).all() and p[0] == exact[0]
    assert holm(p, shares_of(windows)).min() == holm(exact, shares_of(windows)).min() < 1e-3
