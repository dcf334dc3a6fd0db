"""Test a text together with its parts: one corrected p-value, and the marked parts.

`windows` decides: a text is called marked if the whole text or any window passes the level after correction for all of
them. `segments` locates: of the most likely marked stretches, those that contain a passing window are reported. So a
region's p-value is proven; its ends are estimates.
"""

from dataclasses import dataclass

import numpy as np

from caw.detection.segments import segments
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
