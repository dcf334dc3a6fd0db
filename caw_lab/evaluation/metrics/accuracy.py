"""Accuracy with confidence intervals, and tests of whether two policies differ on the same questions.

Answers under several keys answer the same questions, so they are not independent. All statistics over several keys
count or resample questions, with all keys of a question together; intervals are about such questions under these keys.
If nearly all or none of the questions agree, resampling percentiles are not used: they shrink to a point (100 correct
answers out of 100 do not prove an accuracy of 100 %) and cover the truth in far fewer than 95 % of cases.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats

RESAMPLES, LEVEL = 2000, 0.95
PLAIN = ("tpr_at_fpr_1e2", "tpr_at_fpr_1e3", "z_mean")
MEASURES = (*PLAIN, *(f"weighted_{name}" for name in PLAIN))
Interval = tuple[float, float]


def wilson(right: float, total: float, level: float = LEVEL) -> Interval:
    """Return Wilson's score interval of a share (E. B. Wilson 1927, JASA 22:209); (0, 1) for no trials."""
    if total <= 0:
        return 0.0, 1.0
    z = float(stats.norm.ppf(0.5 + level / 2))
    share, spread = right / total, z * z / total
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    # at 0 and 1 the formula's ends are exact, but not in floating point
    return 0.0 if right == 0 else max(0.0, middle - half), 1.0 if right == total else min(1.0, middle + half)


def share_interval(right: np.ndarray, total: np.ndarray, level: float = LEVEL) -> Interval:
    """Return the interval of sum(right) / sum(total) over questions. right, total: [Q], answers of each question.

    Wilson's interval for the effective number of independent trials, from the spread between questions (the design
    effect of survey sampling, between 1 and the mean of `total`). If all or none are right there is no spread, and a
    question counts once. (0, 1) for no trials.
    """
    right, total = right[total > 0].astype(np.float64), total[total > 0].astype(np.float64)
    questions, trials = len(total), float(total.sum())
    if not questions:
        return 0.0, 1.0
    share, effect = float(right.sum()) / trials, trials / questions
    binomial = share * (1 - share) / trials
    if binomial > 0 and questions > 1:
        spread = float(((right - share * total) ** 2).sum()) * questions / (questions - 1) / trials**2
        effect = min(max(spread / binomial, 1.0), effect)
    return wilson(share * trials / effect, trials / effect, level)


def difference_interval(difference: np.ndarray, level: float = LEVEL) -> Interval | None:
    """Return the interval of the mean of paired differences in [-1, 1], float64 [Q]; None for none.

    Wald's interval after adding two questions, one half a trial up and one half a trial down (Agresti and Min 2005,
    Statistics in Medicine 24:729, for right and wrong answers; here for means over keys too). So the interval has a
    width even where all questions agree.
    """
    if not len(difference):
        return None
    questions = len(difference) + 2
    mean = float(difference.sum()) / questions
    spread = (float((difference**2).sum()) + 1) / questions - mean * mean
    half = float(stats.norm.ppf(0.5 + level / 2)) * math.sqrt(spread / questions)
    return max(-1.0, mean - half), min(1.0, mean + half)


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the exact two-sided p-value for A and B being right as often. only_a: what only A got right."""
    if only_a + only_b == 0:
        return 1.0
    return float(stats.binomtest(only_a, only_a + only_b, 0.5).pvalue)


@lru_cache(maxsize=4)  # hundreds of intervals have the same few numbers of questions
def resampled(questions: int, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Return how often each resample draws each question, int64 [R, Q], read-only; the same for the same arguments."""
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(questions, np.full(questions, 1 / questions), size=resamples)
    drawn.setflags(write=False)
    return drawn


def interval(values: np.ndarray, level: float = LEVEL) -> Interval | None:
    """Return the percentile interval of resampled values [R] without NaN and infinity; None if nothing is left."""
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    low, high = np.quantile(known, [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Outcomes:
    """Results of one policy at each question; all compared outcomes have their questions in the same order.

    correct: float64 [Q, N] over N keys, 0 or 1. measures: name -> float64 [Q, N], what detection found (1 if found at a
    false-positive rate, else 0; or a z-score), empty for unmarked texts. strength: of a fixed policy; 0 for unmarked
    texts, None for other policies.
    """

    policy: str
    correct: np.ndarray
    measures: Mapping[str, np.ndarray]
    strength: float | None = None

    @property
    def accuracy(self) -> np.ndarray:
        """Share of keys with a right answer, float64 [Q]."""
        return np.asarray(self.correct.mean(axis=1))


def compare(a: Outcomes, b: Outcomes) -> dict[str, object]:
    """Return A's accuracy minus B's on the same questions: interval, and p by McNemar (one key each) or sign flips."""
    difference = a.accuracy - b.accuracy
    single = a.correct.shape[1] == b.correct.shape[1] == 1
    only_a, only_b = int((difference > 0).sum()), int((difference < 0).sum())
    ends = difference_interval(difference)
    return {
        "a": a.policy,
        "b": b.policy,
        "n": len(difference),
        "accuracy_a": float(a.accuracy.mean()),
        "accuracy_b": float(b.accuracy.mean()),
        "difference": float(difference.mean()),
        "difference_ci": list(ends) if ends else None,
        "better_a": only_a,
        "better_b": only_b,
        "test": "mcnemar" if single else "sign-flip",
        "p_value": mcnemar(only_a, only_b) if single else sign_flip(difference),
    }


def sign_flip(difference: np.ndarray, flips: int = 10_000, seed: int = 0) -> float:
    """Return the two-sided p-value, by random signs, for paired differences [Q] of mean 0; at least 1 / (flips + 1)."""
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(flips, len(difference)))
    # the tolerance makes sums of the same differences in another order equal
    extreme = np.abs(signs @ difference) >= abs(difference.sum()) - 1e-9
    return float((1 + extreme.sum()) / (flips + 1))


def equal_detection(
    target: Outcomes, fixed: Sequence[Outcomes], measure: str, resamples: int = RESAMPLES
) -> dict[str, object] | None:
    """Return the accuracy of a policy minus that of a fixed strength with the same detection rate.

    Fixed policies and unmarked texts (strength 0) give a curve of accuracy over `measure`, with straight lines between
    neighbours in strength. It is read where the target's measure lies. One resample of questions serves all of them.

    Returns difference, difference_ci, accuracy_fixed (read from the curve), target_measure, and inside (whether the
    target lies on the curve; if not, the nearest end is taken: beyond the strong end that is unfair to the target,
    because the fixed strength is found less well). None if fewer than two points have the measure.
    """
    curve = sorted(
        (f for f in fixed if f.strength is not None and measure in f.measures), key=lambda f: f.strength or 0
    )
    if len(curve) < 2 or measure not in target.measures:
        return None
    questions = len(target.correct)
    weights = np.concatenate([np.ones((1, questions)), resampled(questions, resamples)]) / questions
    accuracy = np.stack([weights @ f.accuracy for f in curve], axis=1)
    found = np.stack([weights @ f.measures[measure].mean(axis=1) for f in curve], axis=1)
    found = np.maximum.accumulate(found, axis=1)  # only chance makes a stronger mark harder to find
    at = weights @ target.measures[measure].mean(axis=1)
    read = _read(at, found, accuracy)
    difference = weights @ target.accuracy - read
    ends = interval(difference[1:])
    return {
        "policy": target.policy,
        "measure": measure,
        "curve": [f.policy for f in curve],
        "n": questions,
        "target_measure": float(at[0]),
        "accuracy": float(target.accuracy.mean()),
        "accuracy_fixed": float(read[0]),
        "difference": float(difference[0]),
        "difference_ci": list(ends) if ends else None,
        "inside": bool(found[0, 0] <= at[0] <= found[0, -1]),
    }


def _read(x: np.ndarray, xs: np.ndarray, ys: np.ndarray) -> np.ndarray:
    """Read each row's curve, xs (ascending) and ys [R, P], at x [R]; beyond its ends, the value at the end.

    Where several strengths are found equally well, the weakest counts, which costs the least.
    """
    rows, up_to = np.arange(len(x)), (xs <= x[:, None]).sum(axis=1)  # points that x has reached
    before = xs[rows, np.maximum(up_to - 1, 0)]
    start = ys[rows, (xs < before[:, None]).sum(axis=1)]
    behind = np.minimum(up_to, xs.shape[1] - 1)
    width = xs[rows, behind] - before
    slope = np.divide(ys[rows, behind] - start, width, out=np.zeros(len(x)), where=(width > 0) & (up_to > 0))
    return np.asarray(slope * (x - before) + start)
