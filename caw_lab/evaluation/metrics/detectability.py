"""Detection metrics: scores of texts under a key, and marked texts compared with unmarked ones.

Texts are tokenised from their characters, as a real detector does. Negatives are the same model's unmarked answers to
the same prompts, and human answers, tested under the same keys. Fitted thresholds come from half of the questions
("calibration") and are applied to the other half ("test"); exact p-values need no fitting.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import optimize, stats

from caw.detection import Detector
from caw.requirements import require
from caw_lab.evaluation.metrics.accuracy import LEVEL, RESAMPLES, interval, resampled, share_interval
from caw_lab.evaluation.store import Score, Text, TextGroup, text_digest

FPRS = {"1e2": 1e-2, "1e3": 1e-3}
DRAWN_AT_ONCE = 1 << 16  # weights of questions; keeps tables at a few MB


def is_calibration(question_id: str) -> bool:
    """Return whether a question belongs to the calibration half; only its id decides, so it never changes sides."""
    return hashlib.sha256(f"caw/split/{question_id}".encode()).digest()[0] < 128


def score_texts(
    detector: Detector,
    texts: Sequence[Text],
    group: TextGroup,
    *,
    weighted: Detector | None = None,
    edit_rates: Sequence[float] | None = None,
    originals: Sequence[str] | None = None,
) -> list[Score]:
    """Score a group's texts. weighted: a second detector. edit_rates: None = 0. originals: None = the texts."""
    results = detector([text for _, text in texts]) if texts else []
    second = weighted([text for _, text in texts]) if texts and weighted is not None else [None] * len(texts)
    assert isinstance(results, list) and isinstance(second, list)
    rates = edit_rates or [0.0] * len(texts)
    before = originals or [text for _, text in texts]
    scores = []
    for (name, _), r, w, rate, original in zip(texts, results, second, rates, before, strict=True):
        score = Score(
            id=name, p_value=r.p_value, z=round(r.z_score, 6), num_scored=r.num_scored, num_tokens=r.num_tokens,
            edit_rate=round(float(rate), 6), of=text_digest(original), **vars(group),
        )  # fmt: skip
        scores.append(score if w is None else replace(score, p_weighted=w.p_value, z_weighted=round(w.z_score, 6)))
    return scores


def reweighted(scores: Sequence[Score]) -> list[Score] | None:
    """Return the scores with the weighted test's values in place of the plain ones; None if any is missing."""
    read = []
    for score in scores:
        if score.p_weighted is None or score.z_weighted is None:
            return None
        read.append(replace(score, p_value=score.p_weighted, z=score.z_weighted))
    return read or None


@dataclass(frozen=True)
class Samples:
    """p_values: float64 [N], of N texts. question: int64 [N], the index of the question that each answers."""

    p_values: np.ndarray
    question: np.ndarray

    @classmethod
    def of(cls, scores: Sequence[Score], index: dict[str, int]) -> Samples:
        kept = [score for score in scores if score.id in index]
        return cls(
            np.array([score.p_value for score in kept], dtype=np.float64),
            np.array([index[score.id] for score in kept], dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.p_values)


def auroc(positives: np.ndarray, negatives: np.ndarray) -> float | None:
    """Return the probability that a positive's p is below a negative's, ties half; None if a side is empty."""
    if not len(positives) or not len(negatives):
        return None
    require("scikit-learn", "the metrics of an evaluation")
    from sklearn.metrics import roc_auc_score

    labels = np.concatenate([np.ones(len(positives)), np.zeros(len(negatives))])
    return float(roc_auc_score(labels, -np.concatenate([positives, negatives])))


def auroc_resamples(positives: Samples, negatives: Samples, questions: int, resamples: int = RESAMPLES) -> np.ndarray:
    """Return the AUROC of each resample of questions with all their texts, float64 [R]; NaN where a side is empty."""
    order = np.sort(negatives.p_values)
    place = np.argsort(negatives.p_values, kind="stable")
    above = np.searchsorted(order, positives.p_values, side="right")
    from_equal = np.searchsorted(order, positives.p_values, side="left")
    weights = resampled(questions, resamples)
    return np.concatenate([_weighted_auroc(w, positives, negatives.question[place], above, from_equal)
                           for w in np.array_split(weights, max(1, weights.size // DRAWN_AT_ONCE))])  # fmt: skip


def _weighted_auroc(
    weights: np.ndarray, positives: Samples, ordered: np.ndarray, above: np.ndarray, from_equal: np.ndarray
) -> np.ndarray:
    """Return the AUROC for each row of question weights [R, Q]; sums of halves of integers, so exact.

    ordered: the questions of the negatives, smallest p-value first. above, from_equal: for each positive the number of
    negatives with a p-value no larger, and smaller, than its own.
    """
    ours, theirs = weights[:, positives.question], weights[:, ordered]
    below = np.zeros((len(weights), len(ordered) + 1))  # weight of negatives with the smallest p-values
    np.cumsum(theirs, axis=1, out=below[:, 1:])
    total = below[:, -1]
    wins = ours.sum(axis=1) * total - (ours * (below[:, above] + below[:, from_equal])).sum(axis=1) / 2
    whole = ours.sum(axis=1) * total
    return np.divide(wins, whole, out=np.full(len(weights), np.nan), where=whole > 0)


def auroc_interval(
    positives: Samples, negatives: Samples, questions: int, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """Return the score interval of the AUROC; None if either side is empty.

    It holds the values from which the measured one is at most 1.96 of their own standard errors away (Newcombe 2006,
    Statistics in Medicine 25:559, with Hanley and McNeil's variance). The number of texts in that variance follows from
    the spread over resampled questions, and is at most the number there is. Where nothing spreads (an AUROC of 1) it is
    the number of questions; percentiles would say [1, 1] there.
    """
    if not len(positives) or not len(negatives):
        return None
    value = auroc(positives.p_values, negatives.p_values)
    values = auroc_resamples(positives, negatives, questions, resamples)
    spread = float(np.var(values[np.isfinite(values)]))
    most = min(len(positives), len(negatives))
    texts = float(min(most, questions))
    assert value is not None
    if spread > 0:
        one, pair = value * (1 - value), _hanley(value)
        found = (one * pair + math.sqrt((one * pair) ** 2 + 4 * spread * one * (1 - pair))) / (2 * spread)
        texts = min(max(found, 2.0), float(most))
    return _score_interval(value, texts)


def _hanley(value: float) -> float:
    """The part of Hanley and McNeil's variance that looks like a correlation (1982, Radiology 143:29)."""
    return (1 - value) / (2 - value) + value / (1 + value)


def _score_interval(value: float, texts: float) -> tuple[float, float]:
    z = float(stats.norm.ppf(0.5 + LEVEL / 2))

    def beyond(x: float) -> float:
        return (x - value) ** 2 - z * z * x * (1 - x) * (1 + (texts - 1) * _hanley(x)) / texts**2

    tiny = 1e-12  # at 0 and 1 the variance is 0, a root that means nothing
    low = float(optimize.brentq(beyond, 0.0, min(value, 1 - tiny))) if value > tiny else 0.0
    high = float(optimize.brentq(beyond, max(value, tiny), 1.0)) if value < 1 - tiny else 1.0
    return low, high


def best_f1_threshold(positives: np.ndarray, negatives: np.ndarray) -> float | None:
    """Return the p of greatest F1 (ties: the smallest), halfway to the next p-value; None if a side is empty."""
    if not len(positives) or not len(negatives):
        return None
    values = np.unique(np.concatenate([positives, negatives]))
    scores = np.array([f1(positives, negatives, value) for value in values])
    best = int(np.argmax(scores))
    if best + 1 == len(values):
        return float(values[best])
    return float(np.sqrt(max(values[best], 1e-300) * values[best + 1]))


def f1(positives: np.ndarray, negatives: np.ndarray, threshold: float) -> float:
    """Return F1 at a threshold, with negatives and positives weighted equally in total."""
    found = float((positives <= threshold).mean())
    false = float((negatives <= threshold).mean())
    return 2 * found / (1 + found + false)


def _share_interval(samples: Samples, hits: np.ndarray, questions: int) -> list[float]:
    right = np.bincount(samples.question, weights=hits, minlength=questions)
    return list(share_interval(right, np.bincount(samples.question, minlength=questions)))


def metrics(positives: Sequence[Score], negatives: Sequence[Score], people: Sequence[Score]) -> dict[str, Any]:
    """Return AUROC, F1, true- and false-positive rates, with intervals over questions.

    tpr_at_fpr_1e2, _1e3: share of positives with an exact p-value up to that rate, all questions, nothing fitted.
    fpr_1e2, fpr_human_1e2: share of negatives up to that threshold. auroc: all questions; auroc_test: the test half.
    f1: on the test half, at `f1_threshold` from the calibration half; negatives count as much as positives.
    tpr_at_calibrated_fpr_1e2: on the test half, with the threshold of the calibration half's negatives; None if these
    are too few for the rate (100 texts for 1 %). *_human: with people's answers as negatives.
    """
    names = sorted({score.id for score in positives})
    index = {name: i for i, name in enumerate(names)}
    marked, plain, human = (Samples.of(scores, index) for scores in (positives, negatives, people))
    found: dict[str, Any] = {}
    for suffix, fpr in FPRS.items():
        hits = marked.p_values <= fpr
        found[f"tpr_at_fpr_{suffix}"] = float(hits.mean())
        found[f"tpr_at_fpr_{suffix}_ci"] = _share_interval(marked, hits, len(names))
        found[f"fpr_{suffix}"] = _mean(plain.p_values <= fpr)
        found[f"fpr_human_{suffix}"] = _mean(human.p_values <= fpr)
    for suffix, others in (("", plain), ("_human", human)):
        found[f"auroc{suffix}"] = auroc(marked.p_values, others.p_values)
        ends = auroc_interval(marked, others, len(names))
        found[f"auroc{suffix}_ci"] = list(ends) if ends else None
        found |= _fitted(marked, others, names, suffix)
    found["negatives"], found["negatives_human"] = len(plain), len(human)
    return found


def _fitted(marked: Samples, others: Samples, names: Sequence[str], suffix: str) -> dict[str, Any]:
    """Return metrics of the test half at thresholds of the calibration half."""
    half = np.array([is_calibration(name) for name in names])
    ours, theirs = half[marked.question], half[others.question]
    test, plain = marked.p_values[~ours], others.p_values[~theirs]
    threshold = best_f1_threshold(marked.p_values[ours], others.p_values[theirs])
    usable = threshold is not None and len(test) and len(plain)
    found: dict[str, Any] = {
        f"f1{suffix}": f1(test, plain, threshold) if usable and threshold is not None else None,
        f"f1{suffix}_threshold": threshold,
        f"auroc{suffix}_test": auroc(test, plain),
    }
    if usable and threshold is not None:
        found[f"f1{suffix}_ci"] = _f1_interval(marked, others, half, threshold)
    for fpr_name, fpr in FPRS.items():
        limit = _quantile(others.p_values[theirs], fpr)
        found[f"tpr_at_calibrated_fpr{suffix}_{fpr_name}"] = None if limit is None else _mean(test < limit)
    return found


def _f1_interval(marked: Samples, others: Samples, half: np.ndarray, threshold: float) -> list[float]:
    """Return the interval of the F1 at this threshold, from draws of its two shares given the counts (Jeffreys' prior).

    All keys of a question count once. Percentiles of resamples would say [1, 1] for an F1 of 1.
    """
    rng = np.random.default_rng(0)
    draws = []
    for side in (marked, others):
        test = ~half[side.question]
        hits, count = (side.p_values <= threshold)[test], int(test.sum())
        texts = min(count, len(np.unique(side.question[test])))
        share = float(hits.mean())
        draws.append(rng.beta(share * texts + 0.5, (1 - share) * texts + 0.5, size=RESAMPLES))
    found, false = draws
    ends = interval(2 * found / (1 + found + false))
    value = f1(marked.p_values[~half[marked.question]], others.p_values[~half[others.question]], threshold)
    assert ends is not None
    return [min(ends[0], value), max(ends[1], value)]


def _quantile(negatives: np.ndarray, fpr: float) -> float | None:
    """Return the p-value below which at most a share `fpr` of the negatives lies; None if there are too few of them."""
    if len(negatives) * fpr < 1:
        return None
    return float(np.sort(negatives)[int(len(negatives) * fpr)])


def _mean(hits: np.ndarray) -> float | None:
    return float(hits.mean()) if len(hits) else None
