"""Exact null distributions of unmarked text: z-scores and p-values.

    green lists  each piece of evidence is green with probability f: n of them have Binomial(n, f) green ones
    races        each piece of evidence scores Exponential(1): n of them sum to Gamma(n, 1)

Kirchenbauer et al. 2023 (arXiv 2301.10226), equation (3), defines the z-score. Its normal tail is not used because it
is wrong where it matters: at n = 20, f = 0.25 and 12 green it gives 1.5e-4, the exact tail is 9.4e-4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from caw.detection.family import alone
from caw.detection.weighted import weighted_binomial_tail, weighted_gamma_tail
from caw.watermarks import EXP, Signature, SynthID, Watermark
from caw.watermarks.green_list import GreenList


@dataclass(frozen=True)
class Tails:
    """float64 [N]: z_scores and the exact one-sided p_values P(score >= observed); 0 and 1 where nothing counted."""

    z_scores: np.ndarray
    p_values: np.ndarray


def binomial_tails(hits: np.ndarray, counts: np.ndarray, fraction: float, mid_p: bool = False) -> Tails:
    """Return the tails of `hits` green among `counts` (both [N]), each with probability `fraction` under the null.

    The tail is the regularised incomplete beta function, equal to scipy.stats.binom.sf(hits - 1, counts, fraction).
    mid_p: count the observed value half (Lancaster 1961): uniform on average instead of conservative, but no longer a
    guarantee for each text.
    """
    hits, counts = np.asarray(hits, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    deviation = np.sqrt(np.maximum(counts, 1) * fraction * (1 - fraction))
    tail = _at_least(hits, counts, fraction)
    if mid_p:
        tail = np.where(counts > 0, (tail + _at_least(hits + 1, counts, fraction)) / 2, 1.0)
    return Tails((hits - counts * fraction) / deviation, tail)


def _at_least(hits: np.ndarray, counts: np.ndarray, fraction: float) -> np.ndarray:
    """Return P(Binomial(counts, fraction) >= hits)."""
    inside = np.clip(hits, 1, np.maximum(counts, 1))
    tail = special.betainc(inside, counts - inside + 1, fraction)
    # betainc has no value at (0, n + 1): every text holds at least 0 green tokens, and none more than n
    return np.where(hits <= 0, 1.0, np.where(hits > counts, 0.0, tail))


def gamma_tails(sums: np.ndarray, counts: np.ndarray) -> Tails:
    """Return the tails of sums [N] of counts [N] scores, Exponential(1) under the null: scipy.stats.gamma.sf."""
    sums, counts = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    tail = special.gammaincc(np.maximum(counts, 1), sums)
    return Tails((sums - counts) / np.sqrt(np.maximum(counts, 1)), np.where(counts > 0, tail, 1.0))


def normal_tails(hits: np.ndarray, counts: np.ndarray, gamma: float) -> Tails:
    """Return what other systems report for `hits` green tokens among `counts` (both [N]): z-score and normal tail.

    The p-value is 1 if nothing counts. gamma: green share under the null. transformers 5.17 prints 1 - (1 + sign(z) (1
    - exp(-2 z^2 / pi))) / 2 instead, which is not the tail of its z.
    """
    counts = np.asarray(counts, dtype=np.float64)
    z = (hits - counts * gamma) / np.sqrt(np.maximum(counts, 1) * gamma * (1 - gamma))
    return Tails(z, np.where(counts > 0, special.ndtr(-z), 1.0))


def tails(
    watermark: Watermark, scores: np.ndarray, counts: np.ndarray, mode: str = "exact", mid_p: bool = False
) -> Tails:
    """Return z-scores and p-values of texts whose `counts` [N] pieces of evidence sum to `scores` [N].

    Args:
        watermark: its kind and parameters determine the null distribution; see the module.
        scores: float64 [N].
        counts: int64 [N].
        mode: "exact", or "compat" for the numbers of the format's own system.
        mid_p: see `binomial_tails`; races ignore it, as their scores are continuous.

    Raises ValueError for mid_p with SynthID's weighted means.
    """
    if watermark.null == "binomial":
        if mode == "compat" and isinstance(watermark, GreenList) and watermark.foreign:
            return normal_tails(scores, counts, watermark.gamma)
        return binomial_tails(scores, counts, watermark.null_moments[0], mid_p)
    if isinstance(watermark, SynthID):
        return synthid_tails(watermark, scores, counts, mid_p)
    if isinstance(watermark, EXP) and len(watermark.scheme.shares) > 1:
        return dual_tails(watermark.alpha, scores, counts, mode)
    return gamma_tails(scores, counts)


def synthid_tails(watermark: SynthID, scores: np.ndarray, counts: np.ndarray, mid_p: bool = False) -> Tails:
    """Return SynthID's tails: scores [N] sum the (weighted) mean bits of counts [N] tokens: binomial, as `tails`."""
    scores, counts = np.asarray(scores, dtype=np.float64), np.asarray(counts, dtype=np.int64)
    weights, fraction = watermark.layer_weights, watermark.bit_fraction
    totals = np.rint(scores * weights.sum())
    if np.ptp(weights) == 0:
        return binomial_tails(totals, counts * len(weights), fraction, mid_p)
    if mid_p:
        raise ValueError("mid-p values of weighted means are not supported; use reading='mean', or leave mid_p out")
    spread = np.sqrt(np.maximum(counts, 1) * fraction * (1 - fraction) * (weights**2).sum())
    z = (totals - counts * fraction * weights.sum()) / spread
    p = [
        weighted_binomial_tail(int(total), weights, np.full(len(weights), n), fraction)
        for total, n in zip(totals, counts, strict=True)
    ]
    return Tails(z, np.array(p, dtype=np.float64))


def dual_tails(alpha: float, scores: np.ndarray, counts: np.ndarray, mode: str = "exact") -> Tails:
    """Return the tails of `scores` [N] that sum (1 - alpha) E + alpha E' over `counts` pairs of Exponential(1).

    mode "compat": the gamma distribution of equal mean and variance, which vLLM's detector uses for the sum.
    """
    scores, counts = np.asarray(scores, dtype=np.float64), np.asarray(counts, dtype=np.int64)
    variance = (1 - alpha) ** 2 + alpha**2
    z = (scores - counts) / np.sqrt(np.maximum(counts, 1) * variance)
    if mode == "compat":
        p = special.gammaincc(np.maximum(counts, 1) / variance, scores / variance)
    else:
        weights = np.array([1 - alpha, alpha])
        p = np.array([weighted_gamma_tail(s, weights, np.full(2, n)) for s, n in zip(scores, counts, strict=True)])
    return Tails(z, np.where(counts > 0, p, 1.0))


def fewest_for(watermark: Signature, fpr: float) -> int:
    """Return the minimum number of pieces of evidence with which a text could be called marked at `fpr`."""
    if len(watermark.parts) > 1:
        return min(fewest_for(part, alone(fpr, len(watermark.parts))) for part in watermark.parts)
    fpr, (part,) = alone(fpr, watermark.family), watermark.parts
    if part.null == "binomial":
        # all green: p = fraction ** n
        return max(1, int(np.ceil(np.log(fpr) / np.log(part.null_moments[0]) - 1e-9)))
    if isinstance(part, SynthID):
        return max(1, int(np.ceil(np.log(fpr) / np.log(part.bit_fraction) / part.depth - 1e-9)))
    return 1


def holm(p_values: Sequence[float] | np.ndarray, shares: np.ndarray | None = None) -> np.ndarray:
    """Return Holm-corrected p-values float64 [m], in the order given; each at most 1.

    p_values: [m], of the single tests.
    shares: float64 [m] > 0 that sum to 1, each test's share of the level (Holm 1979, section 3); None = equal shares,
        which equals statsmodels' multipletests(method="holm").

    Rejecting those at or below a level keeps the chance of any false rejection below it under any dependence.
    """
    p = np.asarray(p_values, dtype=np.float64)
    needs = p if shares is None else p / shares
    order = np.argsort(needs, kind="stable")
    # how many tests are not rejected yet, or what they have of the level together
    left = np.arange(len(p), 0, -1) if shares is None else np.cumsum(shares[order][::-1])[::-1]
    out = np.empty_like(p)
    out[order] = np.minimum(np.maximum.accumulate(needs[order] * left), 1.0)
    return out
