"""Exact tails of weighted sums, for tests in which some tokens count more than others.

    green lists  sum of w_i B_i, B_i Bernoulli(f), integer weights: the lattice distribution itself
    races        sum of w_i E_i, E_i Exponential(1): its characteristic function, inverted

Both are computed under an exponential tilt that moves the mean of the sum to the observed value (Daniels 1954, the
saddle point), so that small p-values keep their relative precision instead of being lost to rounding at 1e-16.
"""

import numpy as np
import scipy  # its parts load when they are used: fft, integrate and optimize take longer than a test
from scipy import special

MAX_LATTICE = 1 << 30
NEGLIGIBLE = 45.0  # -log of what a transform's value may be left out at: e^-45 of the whole, 3e-20


def weighted_binomial_tail(total: int, weights: np.ndarray, trials: np.ndarray, fraction: float) -> float:
    """Return P(sum >= total), where trials[j] independent Bernoulli(fraction) variables have weight weights[j].

    weights: int64 [J] > 0. trials: int64 [J] >= 0. Exact up to rounding (relative error about 1e-10).
    Raises ValueError if the sum's range exceeds 2^30 steps.
    """
    keep = (trials > 0) & (weights > 0)
    weights, trials = weights[keep].astype(np.int64), trials[keep].astype(np.float64)
    most = int((weights * trials).sum())
    if total <= 0:
        return 1.0
    if total > most:
        return 0.0
    if total > most - int(weights.min()):  # only if everything is green
        return float(np.exp(trials.sum() * np.log(fraction)))
    if most >= MAX_LATTICE:
        raise ValueError(
            f"a weighted test supports sums below {MAX_LATTICE}, got {most}; split the text, or use fewer levels"
        )
    tilt = _binomial_tilt(total, weights, trials, fraction)
    log_norm = float((trials * np.logaddexp(np.log1p(-fraction), np.log(fraction) + tilt * weights)).sum())
    share = special.expit(special.logit(fraction) + tilt * weights)
    # under the tilt hardly anything lies 12 standard deviations from the total: a circle of that size is enough
    spread = float(np.sqrt((trials * weights.astype(np.float64) ** 2 * share * (1 - share)).sum()))
    reach = int(12 * spread) + 64 * int(weights.max())
    size = int(scipy.fft.next_fast_len(2 * reach, real=True)) if 2 * reach < most else most + 1
    scale = float(np.exp(log_norm - tilt * total)) / size
    places, transform = _transform(weights, trials, share, size)
    angle = 2j * np.pi * places / size
    # angles beyond pi have the conjugates; 0 and pi are their own
    at_total = np.where(2 * places % size == 0, 1, 2) * transform * np.exp(angle * total)
    if tilt >= 0:
        above = _geometric(angle - tilt, min(reach, most - total) + 1)
        return min(1.0, scale * float((at_total * above).real.sum()))
    step = tilt - angle  # from the total down: e^step, e^(2 step), ...
    below = np.exp(step) * _geometric(step, min(reach, total))
    return max(0.0, 1.0 - scale * float((at_total * below).real.sum()))


def weighted_binomial_bound(totals: np.ndarray, trials: np.ndarray, weights: np.ndarray, fraction: float) -> np.ndarray:
    """Return Chernoff's bound on P(sum >= totals), float64 [N]: never below the tail, about ten times it where that is
    small.

    Each sum [N] is of trials [N] Bernoulli(fraction) variables of every one of `weights` [J]; 1 if the total is not
    above its mean. A thousand times faster than the exact tail.
    """
    trials = np.maximum(np.asarray(trials, dtype=np.float64), 1)
    # a total of all or nothing has its bound at an endless tilt; this one is as good within 1e-9
    share = np.minimum(totals / trials, weights.sum() * (1 - 1e-12))
    low, high = np.zeros(len(share)), np.full(len(share), 60.0 / weights.min())
    for _ in range(60):
        tilt = (low + high) / 2
        mean = (weights * special.expit(special.logit(fraction) + tilt[:, None] * weights)).sum(axis=1)
        low, high = np.where(mean < share, tilt, low), np.where(mean < share, high, tilt)
    growth = np.logaddexp(np.log1p(-fraction), np.log(fraction) + low[:, None] * weights).sum(axis=1)
    return np.asarray(np.exp(np.minimum(trials * (growth - low * share), 0.0)))


def _binomial_tilt(total: int, weights: np.ndarray, trials: np.ndarray, fraction: float) -> float:
    """Return the tilt under which the mean is `total`."""

    def excess(tilt: float) -> float:
        return float((trials * weights * special.expit(special.logit(fraction) + tilt * weights)).sum() - total)

    side = -1.0 if excess(0.0) > 0 else 1.0
    far = side / float(weights.max())
    while excess(far) * side < 0:
        far *= 2
    return float(scipy.optimize.brentq(excess, min(0.0, far), max(0.0, far), xtol=1e-12))


def _transform(weights: np.ndarray, trials: np.ndarray, share: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the transform of the sums modulo `size` for success probabilities `share` [J]: numbers k int64 [K] of the
    angles 2 pi k / size in [0, pi] where it is not negligible, complex128 [K] what it is there.

    |1 - p + p e^(i a)|^n <= exp(-2 n p (1 - p) sin^2(a / 2)), and sin^2(x / 2) = (1 - cos x) / 2: the bounds of all
    angles are one real transform, and with many trials a few dozen angles are left.
    """
    spread = trials * share * (1 - share)
    decay = spread.sum() - scipy.fft.rfft(np.bincount(weights % size, spread, size)).real
    places = np.flatnonzero(decay < NEGLIGIBLE)
    angle = -2j * np.pi * places / size
    log_transform = np.zeros(len(places), dtype=np.complex128)
    for weight, count, p in zip(weights, trials, share, strict=True):
        log_transform += count * np.log(1 - p + p * np.exp(angle * weight))
    return places, np.exp(log_transform)


def _geometric(step: np.ndarray, count: int) -> np.ndarray:
    """1 + e^step + ... + e^((count - 1) step), for complex steps [K]."""
    last = np.expm1(count * step)
    return np.asarray(np.divide(last, np.expm1(step), out=np.full_like(last, count), where=step != 0))


def weighted_gamma_tail(total: float, weights: np.ndarray, trials: np.ndarray) -> float:
    """Return P(sum >= total), where trials[j] independent Exponential(1) variables have weight weights[j] > 0.

    The inversion integral of the moment generating function on a curve through its saddle point; relative error about
    1e-8. Equal weights are the gamma tail itself.
    """
    keep = (trials > 0) & (weights > 0)
    w, n = weights[keep].astype(np.float64), trials[keep].astype(np.float64)
    if not w.size:
        return 1.0
    if total <= 0:
        return 1.0
    if np.ptp(w) == 0:
        return float(special.gammaincc(n.sum(), total / w[0]))

    def exponent(s: complex) -> complex:
        return complex(-(n * np.log1p(-s * w)).sum() - s * total - np.log(s))

    pole = 1.0 / float(w.max())
    found = scipy.optimize.minimize_scalar(
        lambda s: exponent(complex(s)).real, bounds=(0.0, pole), method="bounded", options={"xatol": 1e-10 * pole}
    )
    line = float(found.x)
    peak = exponent(complex(line)).real
    curvature = float((n * (w / (1 - line * w)) ** 2).sum()) + 1 / line**2
    step = 1 / np.sqrt(curvature)
    # with many terms the integrand dies out on a straight line; with few it does not, and the curve bends to the right,
    # around the poles, where exp(-s total) is small (with many terms that would lead too close to the poles)
    bend = 0.25 if n.sum() <= 8 else 0.0

    def along(u: float) -> float:
        s = complex(line + bend * step * u * u, step * u)
        return float((np.exp(exponent(s) - peak) * complex(2 * bend * u, 1)).imag)

    value, _ = scipy.integrate.quad(along, 0.0, np.inf, limit=400, epsrel=1e-8, epsabs=0.0)
    return float(min(1.0, max(0.0, np.exp(peak) * step * value / np.pi)))
