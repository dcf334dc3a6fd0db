"""Test a text together with its parts: one corrected p-value, and the marked parts.

`windows` decides: a text is called marked if the whole text or any window passes the level after correction for all of
them. segments locate: of the most likely marked stretches, those that contain a passing window are reported. So a
region's p-value is proven; its ends are estimates.

The split into segments: each token that counts has a log-likelihood ratio, marked against unmarked: of Bernoulli
variables for green lists and bits, of exponential ones for races; the marked mean is fitted to the text. The split
maximises the sum of the ratios over the marked stretches less CHANGE for each change of state inside the text
(Viterbi's recursion for two states; either may begin or end the text at no cost).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from caw.detection.statistics import holm
from caw.detection.windows import shares_of, window_p_values, windows_of
from caw.watermarks import Watermark


@dataclass(frozen=True)
class Region:
    """A part of a text that is marked.

    start, end: tokens [start, end). start_char, end_char: characters of the tokenised text, None for ids. p_value: of
    the most significant window in it (or of the whole text), corrected for all of them.
    """

    start: int
    end: int
    start_char: int | None
    end_char: int | None
    p_value: float


@dataclass(frozen=True)
class Search:
    """Result of the whole text and its windows together.

    p_value: corrected for all of them: at most a share p of all keys gives an unmarked text a value of p or less.
    tests: their number. regions: marked parts, in order; not empty exactly if p_value <= level.
    """

    p_value: float
    tests: int
    regions: tuple[Region, ...]


def search(values: np.ndarray, counted: np.ndarray, watermark: Watermark, level: float) -> Search:
    """Test a text and all its windows; values float64 [n] and counted bool [n] are per token."""
    if not len(values):
        return Search(1.0, 1, ())
    windows = windows_of(len(values))
    p_values = window_p_values(windows, values, counted, watermark)
    corrected = holm(p_values, shares_of(windows))
    passing = np.flatnonzero(corrected <= level)
    if not len(passing):
        return Search(float(corrected.min()), len(windows), ())
    # the most significant after correction, before it, and the longest: one of them is near the truth
    order = passing[np.argsort(corrected[passing], kind="stable")]
    likely = {int(order[0]), int(passing[p_values[passing].argmin()]), int(passing[_sizes(windows[passing]).argmax()])}
    stretches = segments(watermark, values, counted, [slice(*windows[i].tolist()) for i in sorted(likely)])
    regions = _proven(windows[order], corrected[order], stretches)
    return Search(float(corrected.min()), len(windows), tuple(regions))


def _sizes(windows: np.ndarray) -> np.ndarray:
    return windows[:, 1] - windows[:, 0]


def _proven(windows: np.ndarray, corrected: np.ndarray, stretches: list[tuple[int, int]]) -> list[Region]:
    """Return the stretches that contain passing windows, most significant first, and passing windows outside them."""
    found: dict[tuple[int, int], float] = {}
    for (start, end), p in zip(windows.tolist(), corrected.tolist(), strict=True):
        # a window proves that it holds marks, not where; most of it lies in the longest overlap
        overlap, stretch = max(((min(end, b) - max(start, a), (a, b)) for a, b in stretches), default=(0, (0, 0)))
        if overlap > 0:
            found.setdefault(stretch, p)
        elif all(end <= a or b <= start for a, b in found):
            found[start, end] = p
    return [Region(start, end, None, None, p) for (start, end), p in sorted(found.items())]


# nats that a change costs. Measured by bench_regions.py --changes at aaf5148c: with 2, marked parts fall apart where
# few tokens happen to be green; with 6, parts of 50 tokens run on to the ends of the text
CHANGE = 3.0
MAX_FITS = 8  # of the mean, each followed by a new split; two or three are usually enough


def log_ratios(watermark: Watermark, values: np.ndarray, counted: np.ndarray, mean: float) -> np.ndarray:
    """Return each token's log-likelihood ratio, float64 [n], of a marked mean to the null's; 0 where none counts."""
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
    """Return the marked stretches [start, end) of a text, in order, by the best fit of the mean from `starts`."""
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
