"""Metrics of positives against negatives: against brute force, scikit-learn and theory."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score
from tiny import tiny_tokenizer

import caw
from caw.detection import Detector
from caw.testing import assert_close
from caw_lab.evaluation.metrics.detectability import (
    Samples,
    auroc,
    auroc_interval,
    auroc_resamples,
    best_f1_threshold,
    f1,
    is_calibration,
    metrics,
    score_texts,
)
from caw_lab.evaluation.store import Score, TextGroup

POSITIVE = Score("m.t.kgw.hard.0", "t/0", "kgw", 0, "none", 1, "model", 0.5, 0.0, 10, 10)
NEGATIVE = replace(POSITIVE, cell="m.t.none", label=0)


def scores(base: Score, p_values: np.ndarray) -> list[Score]:
    return [replace(base, id=f"t/{i}", p_value=float(p)) for i, p in enumerate(p_values)]


def test_half_of_the_questions_calibrate_and_never_change_sides() -> None:
    half = [is_calibration(f"gsm8k/test/{i}") for i in range(2000)]
    low, high = stats.binom.ppf([0.0005, 0.9995], 2000, 0.5)
    assert low <= sum(half) <= high and half[:3] == [is_calibration(f"gsm8k/test/{i}") for i in range(3)]


def test_texts_are_tokenised_and_scored_as_the_detector_does() -> None:
    detector = Detector(tiny_tokenizer(), caw.KGW(key=3))
    texts = [("t/1", "the sky is blue because"), ("t/2", ""), ("t/3", "a small model")]
    group = TextGroup("c", "kgw", 1, 0, "human")
    found = score_texts(detector, texts, group, edit_rates=[0, 0, 0.5])
    for (name, text), score in zip(texts, found, strict=True):
        alone = detector(text)
        assert (score.id, score.p_value, score.num_scored) == (name, alone.p_value, alone.num_scored)
        assert (score.cell, score.watermark, score.key, score.label, score.source) == ("c", "kgw", 1, 0, "human")
    assert found[1].p_value == 1.0 and found[1].num_tokens == 0 and found[2].edit_rate == 0.5
    assert score_texts(detector, [], group) == []


def test_auroc_counts_pairs_ties_half() -> None:
    positives, negatives = np.array([1e-9, 0.2, 0.5]), np.array([0.2, 0.9])
    pairs = [(n > p) + (n == p) / 2 for p in positives for n in negatives]
    assert_close(auroc(positives, negatives), np.mean(pairs), "float64")
    assert auroc(positives, np.array([])) is None and auroc_interval(Samples.of([], {}), Samples.of([], {}), 0) is None


def test_resampled_aurocs_are_those_of_brute_force() -> None:
    from caw_lab.evaluation.metrics.accuracy import resampled

    rng = np.random.default_rng(0)
    marked = Samples(np.round(rng.random(12) ** 2, 1), rng.integers(0, 6, 12))  # rounded: ties
    plain = Samples(np.round(rng.random(9), 1), rng.integers(0, 6, 9))
    values = []
    for drawn in resampled(6, 40):
        p = np.repeat(marked.p_values, drawn[marked.question])
        n = np.repeat(plain.p_values, drawn[plain.question])
        values.append(np.mean((n > p[:, None]) + (n == p[:, None]) / 2) if len(p) and len(n) else np.nan)
    assert_close(auroc_resamples(marked, plain, 6, resamples=40), np.array(values), "float64")


@pytest.mark.parametrize(("shift", "keys"), [(0.0, 1), (2.5, 1), (3.5, 1), (3.5, 3)])
def test_the_interval_of_the_auroc_covers_the_truth(shift: float, keys: int) -> None:
    """100 worlds of 60 questions (fewer than 87 hold the truth with probability 1e-3 where 95 % do); with keys, the
    texts of a question are alike. Percentiles of resamples hold .993 in 85 % and are a point at 1."""
    rng, truth, inside = np.random.default_rng(4), stats.norm.cdf(shift / 2**0.5), 0
    question = np.tile(np.arange(60), keys)
    for _ in range(100):
        skill, other = rng.normal(0, 0.8, (2, 60))
        marked = Samples(stats.norm.sf(shift + skill[question] + rng.normal(0, 0.6, 60 * keys)), question)
        plain = Samples(stats.norm.sf(other[question] + rng.normal(0, 0.6, 60 * keys)), question)
        ends = auroc_interval(marked, plain, 60, resamples=40)
        assert ends is not None and ends[0] < ends[1]
        inside += ends[0] <= truth <= ends[1]
    assert inside >= 87


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.35, 1.0])
def test_f1_is_scikit_learns_for_equal_numbers(threshold: float) -> None:
    rng = np.random.default_rng(1)
    positives, negatives = rng.random(50) ** 3, rng.random(50)
    labels = np.repeat([1, 0], 50)
    called = np.concatenate([positives, negatives]) <= threshold
    assert_close(f1(positives, negatives, threshold), f1_score(labels, called), "float64")


def test_the_best_threshold_is_that_of_a_search() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        positives, negatives = rng.random(23) ** 3, rng.random(31)
        best = best_f1_threshold(positives, negatives)
        assert best is not None
        tried = [f1(positives, negatives, t) for t in np.concatenate([positives, negatives])]
        assert f1(positives, negatives, best) == max(tried)
    assert best_f1_threshold(np.array([]), np.array([0.5])) is None
    assert best_f1_threshold(np.array([0.0]), np.array([0.0])) == 0.0


def test_metrics_of_separate_sides_are_perfect_and_of_equal_sides_chance() -> None:
    rng = np.random.default_rng(3)
    plain = scores(NEGATIVE, rng.random(400))
    far = metrics(scores(POSITIVE, rng.random(400) * 1e-6), plain, [])
    assert far["tpr_at_fpr_1e2"] == far["tpr_at_fpr_1e3"] == far["auroc"] == 1.0 and far["f1"] > 0.97
    assert far["auroc_human"] is None and far["f1_human"] is None and far["negatives_human"] == 0
    same = metrics(scores(POSITIVE, rng.random(400)), plain, plain)
    low, high = same["auroc_ci"]
    assert low < 0.5 < high and same["auroc"] == same["auroc_human"]
    # the rates of exact p-values are what they say, within 99.9 %
    assert stats.binom.ppf(0.0005, 400, 0.01) <= 400 * same["fpr_1e2"] <= stats.binom.ppf(0.9995, 400, 0.01)


def test_thresholds_come_from_the_other_half() -> None:
    """The halves disagree: what is best on one is useless on the other, and the figures must show it."""
    marked, plain = np.empty(200), np.empty(200)
    for i in range(200):
        half = is_calibration(f"t/{i}")
        marked[i], plain[i] = (1e-8, 1e-4) if half else (1e-3, 1e-6)
    found = metrics(scores(POSITIVE, marked), scores(NEGATIVE, plain), [])
    assert found["f1"] == 0.0 and found["auroc_test"] == 0.0 and found["auroc"] > 0.2
    assert 1e-8 <= found["f1_threshold"] < 1e-4
    # the least p-value of 100 calibration negatives is 1e-4, and no test positive is below
    assert found["tpr_at_calibrated_fpr_1e2"] in (None, 0.0)


def test_too_few_negatives_give_no_threshold() -> None:
    found = metrics(scores(POSITIVE, np.full(20, 1e-9)), scores(NEGATIVE, np.full(20, 0.5)), [])
    assert found["tpr_at_calibrated_fpr_1e2"] is None and found["tpr_at_fpr_1e2"] == 1.0
    many = metrics(scores(POSITIVE, np.full(400, 1e-9)), scores(NEGATIVE, np.linspace(0.1, 1, 400)), [])
    assert many["tpr_at_calibrated_fpr_1e2"] == 1.0 and many["tpr_at_calibrated_fpr_1e3"] is None
