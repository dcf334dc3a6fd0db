"""Likelihood ratios of races: what a token says if the probability with which it was drawn is known.

A token of probability q that won a race at full strength has the largest of the keyed numbers F^(1/q): its own F is
M^q with M uniform, so it has the density F^(1/q - 1) / q where an unmarked token's is uniform. By Neyman and Pearson
no test of one size finds more than the sum of

    r(F) = log(e + (1 - e) F^(1/q - 1) / q),     e = SLIP

with e = 0. A token that somebody replaced, or that a model reads a little differently, would then cost all evidence
(-inf); with e it costs log e at most.

Probabilities are rounded to 63 levels, evenly spaced in the logarithm of (1 - q) / q, and r down to a lattice of STEP
nats, the same for every text. Given the text only the key is random: under the null each F is uniform, so the sum's
distribution is a convolution of known masses on a lattice, and its tail is exact for any levels. It is computed under
the exponential tilt that moves the mean to the observed value, as in `weighted`.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy  # its parts load when they are used

from caw.detection.statistics import Tails

RATIO_LEVELS = 63
LEAST_ODDS, MOST_ODDS = 0.01, 1e5  # against the token; one that is likelier than .99 says less than 1e-4 nats
SLIP = 0.01
STEP = 1 / 32


def ratio_levels(shares: np.ndarray) -> np.ndarray:
    """Return levels int64 of tokens drawn with probabilities `shares`; 0 = no evidence: probability 0 or nearly 1."""
    shares = np.asarray(shares, dtype=np.float64)
    with np.errstate(divide="ignore"):
        place = np.log((1 - shares) / np.maximum(shares, 1e-300) / LEAST_ODDS) / _spacing() + 1
    levels = np.clip(np.rint(place), 0, RATIO_LEVELS).astype(np.int64)
    return np.where(shares > 0, levels, 0)


def ratio_steps(values: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return r in steps above the least one, int64 [N], of tokens with `values` -log(1 - F) and levels > 0."""
    odds = _odds()[levels - 1]
    with np.errstate(divide="ignore"):
        log_f = np.log(-np.expm1(-values))
    return np.asarray(np.floor((_ratio(odds, log_f)) / STEP).astype(np.int64) - _least())


def ratio_tails(
    values: np.ndarray, levels: np.ndarray, owner: np.ndarray, counted: np.ndarray, texts: int
) -> tuple[np.ndarray, Tails]:
    """Return (sums in nats, their tails), float64 [texts] each; values, levels, owner and counted are per token [N].

    levels: of counted tokens they are above 0.
    """
    steps, trials = ratio_sums(values, levels, owner, counted, texts)
    law = _law()
    means = trials[:, 1:] @ law.means
    spread = np.sqrt(trials[:, 1:] @ law.variances)
    z = (steps - means) / np.where(spread > 0, spread, 1)
    p = [ratio_tail(int(total), n) for total, n in zip(steps.tolist(), trials, strict=True)]
    return (steps + _least() * trials.sum(axis=1)) * STEP, Tails(z, np.array(p, dtype=np.float64))


def ratio_sums(
    values: np.ndarray, levels: np.ndarray, owner: np.ndarray, counted: np.ndarray, texts: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (steps int64 [texts], tokens of each level int64 [texts, 64]) of the counted tokens of each text."""
    own, level = owner[counted], levels[counted]
    steps = np.bincount(own, weights=ratio_steps(values[counted], level), minlength=texts).astype(np.int64)
    size = RATIO_LEVELS + 1
    return steps, np.bincount(own * size + level, minlength=texts * size).reshape(texts, size)


def ratio_tail(total: int, trials: np.ndarray) -> float:
    """Return P(steps >= total) of unmarked text with trials[j] tokens of level j >= 1, int64 [64], to about 1e-9."""
    used = np.flatnonzero(trials[1:])
    counts = trials[1:][used].astype(np.float64)
    law = _law()
    logs, cells = law.log_masses[used], np.arange(law.log_masses.shape[1])
    tops = law.tops[used]
    # a likely token scores no less than its own bottom, in the precision of the masses
    if total <= int((np.isfinite(logs).argmax(axis=1) * counts).sum()):
        return 1.0
    most = int((tops * counts).sum())
    if total > most:
        return 0.0
    if total == most:
        return float(np.exp((counts * logs[np.arange(len(used)), tops]).sum()))

    def tilted(tilt: float) -> tuple[np.ndarray, np.ndarray]:
        """(log-normalisers [J], masses [J, cells]) under the tilt."""
        high = logs + tilt * cells
        peak = high.max(axis=1, keepdims=True)
        masses = np.exp(high - peak)
        sums = masses.sum(axis=1, keepdims=True)
        return (peak + np.log(sums))[:, 0], masses / sums

    def excess(tilt: float) -> float:
        return float((counts * (tilted(tilt)[1] @ cells)).sum() - total)

    side = -1.0 if excess(0.0) > 0 else 1.0
    far = side / float(tops.max())
    while excess(far) * side < 0:
        far *= 2
    tilt = float(scipy.optimize.brentq(excess, min(0.0, far), max(0.0, far), xtol=1e-12, rtol=1e-10))
    norms, masses = tilted(tilt)
    means = masses @ cells
    spread = float(np.sqrt((counts * (masses @ cells**2 - means**2)).sum()))
    # under the tilt hardly anything lies further from the total (Bernstein: below 1e-15): a circle is enough
    reach = int(12 * spread) + 24 * int(tops.max())
    size = int(scipy.fft.next_fast_len(min(2 * reach, most + 1), real=True))
    transform = np.ones(size // 2 + 1, dtype=np.complex128)
    for mass, count in zip(masses, counts, strict=True):
        transform *= scipy.fft.rfft(_folded(mass, size)) ** int(count)
    mass = np.maximum(scipy.fft.irfft(transform, n=size), 0)
    scale = float(np.exp((counts * norms).sum() - tilt * total))
    if tilt >= 0:
        above = np.arange(min(reach, most - total + 1))
        return min(1.0, scale * float((mass[(total + above) % size] * np.exp(-tilt * above)).sum()))
    below = np.arange(1, min(reach, total) + 1)
    return max(0.0, 1.0 - scale * float((mass[(total - below) % size] * np.exp(tilt * below)).sum()))


def _folded(mass: np.ndarray, size: int) -> np.ndarray:
    """Return masses [cells] on a circle of `size`."""
    return np.bincount(np.arange(len(mass)) % size, weights=mass, minlength=size)


@dataclass(frozen=True)
class _Law:
    """Of r under the null, for each level: log-masses float64 [63, cells], its last cell int64 [63], and moments."""

    log_masses: np.ndarray
    tops: np.ndarray
    means: np.ndarray
    variances: np.ndarray


@lru_cache(maxsize=1)
def _law() -> _Law:
    odds = _odds()[:, None]
    tops = np.floor(_ratio(odds[:, 0], np.zeros(len(odds))) / STEP).astype(np.int64) - _least()
    cells = np.arange(1, int(tops.max()) + 2)
    # cell c holds r in [low, low + STEP), low = (least + c) STEP: F from where r = low on
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = np.log(np.maximum(np.exp((cells + _least()) * STEP) - SLIP, 0) / ((1 - SLIP) * (1 + odds))) / odds
    above = np.where(cells > tops[:, None], 0.0, -np.expm1(np.minimum(inside, 0.0)))
    masses = np.concatenate([np.ones_like(odds), above[:, :-1]], axis=1) - above
    places = np.arange(masses.shape[1])
    means = masses @ places
    with np.errstate(divide="ignore"):
        return _Law(np.log(np.maximum(masses, 0)), tops, means, masses @ places**2 - means**2)


def _ratio(odds: np.ndarray, log_f: np.ndarray) -> np.ndarray:
    """Return r, float64; 1 / q = 1 + odds."""
    return np.asarray(np.logaddexp(np.log(SLIP), np.log1p(-SLIP) + np.log1p(odds) + odds * log_f))


def _least() -> int:
    """Return the lattice point of the least r."""
    return int(np.floor(np.log(SLIP) / STEP))


def _spacing() -> float:
    return float(np.log(MOST_ODDS / LEAST_ODDS) / (RATIO_LEVELS - 1))


@lru_cache(maxsize=1)
def _odds() -> np.ndarray:
    """Return (1 - q) / q of each level from 1, float64 [63]."""
    return LEAST_ODDS * np.exp(_spacing() * np.arange(RATIO_LEVELS))
