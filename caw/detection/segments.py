"""Segmentation: the most likely split of a text into marked and unmarked stretches.

Each token that counts has a log-likelihood ratio, marked against unmarked: of Bernoulli variables for green lists and
bits, of exponential ones for races; the marked mean is fitted to the text. The split maximises the sum of the ratios
over the marked stretches less CHANGE for each change of state inside the text (Viterbi's recursion for two states;
either may begin or end the text at no cost). It is an estimate and proves nothing; the tests of `windows` do.
"""

from collections.abc import Iterable

import numpy as np

from caw.watermarks import Watermark

# nats that a change costs. Measured by bench_regions.py --changes at aaf5148c: with 2, marked parts fall apart where
# few tokens happen to be green; with 6, parts of 50 tokens run on to the ends of the text
CHANGE = 3.0
MAX_FITS = 8  # of the mean, each followed by a new split; two or three are usually enough


def log_ratios(watermark: Watermark, values: np.ndarray, counted: np.ndarray, mean: float) -> np.ndarray:
    """Return the log-likelihood ratio of each token, float64 [n], between a marked mean and the null's; 0 where it does
    not count.

    A value is treated as the mean of as many bits, or as a gamma variable of such a shape, as give it its variance
    under the null.
    """
    null, variance = watermark.null_moments
    if watermark.null == "gamma":
        ratios = (np.log(null / mean) + values * (1 / null - 1 / mean)) * (null**2 / variance)
    else:
        bits = null * (1 - null) / variance
        ratios = bits * (values * np.log(mean / null) + (1 - values) * np.log((1 - mean) / (1 - null)))
    return np.where(counted, ratios, 0.0)


def segments(
    watermark: Watermark, values: np.ndarray, counted: np.ndarray, starts: Iterable[slice]
) -> list[tuple[int, int]]:
    """Return the marked stretches [start, end) of a text, in order; the mean is fitted from each of `starts` and the
    best fit used.
    """
    best, chosen = -np.inf, np.zeros(len(values), dtype=bool)
    for start in starts:
        inside = np.zeros(len(values), dtype=bool)
        inside[start] = True
        for _ in range(MAX_FITS):
            mean = _marked_mean(watermark, values[inside & counted])
            before = inside
            inside, gain = _split(log_ratios(watermark, values, counted, mean))
            if (inside == before).all() or not inside.any():
                break
        if inside.any() and gain > best:
            best, chosen = gain, inside
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]])))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def _marked_mean(watermark: Watermark, values: np.ndarray) -> float:
    """Return the mean of marked values, bounded away from the null's and from values that no token could contradict."""
    null, variance = watermark.null_moments
    mean = float(values.mean()) if len(values) else null
    least = null + 0.1 * float(np.sqrt(variance))
    if watermark.null == "gamma":
        return max(mean, least)
    return min(max(mean, least), 1 - 0.5 * (1 - null) / (len(values) + 1))


def _split(ratios: np.ndarray) -> tuple[np.ndarray, float]:
    """Return (marked bool [n], the sum of their ratios less the changes) of the best split."""
    lead = 0.0  # of being marked over being unmarked, for the best splits up to here
    entered, left = bytearray(len(ratios)), bytearray(len(ratios))
    for i, ratio in enumerate(ratios.tolist()):
        if lead < -CHANGE:
            lead, entered[i] = -CHANGE, i > 0
        elif lead > CHANGE:
            lead, left[i] = CHANGE, i > 0
        lead += ratio
    marked = np.zeros(len(ratios), dtype=bool)
    state = lead > 0
    for i in range(len(ratios) - 1, -1, -1):
        marked[i] = state
        state = not entered[i] if state else bool(left[i])
    changes = int((marked[1:] != marked[:-1]).sum())
    return marked, float(ratios[marked].sum()) - CHANGE * changes
