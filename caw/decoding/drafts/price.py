"""What a row more costs a forward, measured while texts are made.

A seventh of a forward with 4-bit weights, where unpacking and arithmetic weigh, a fiftieth with bfloat16 weights of a
larger model, where reading does.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Any
from weakref import WeakKeyDictionary

ROW = 0.05  # share of a forward of one row, as long as nothing is known
TRUSTED = 16.0  # what that counts as: forwards times the square of their rows' distance from the mean
LEAST, GREATEST = 0.005, 0.4
KEPT = 64  # forwards that count; without drafts among them it is ROW again, so that a wrong price is found out


class RowPrice:
    """A line through the times of the last forwards by their rows; of each number of rows the median counts.

    Texts do not depend on it, only how many drafts are carried.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=KEPT)
        self._share: float | None = None

    def saw(self, rows: int, seconds: float) -> None:
        """A forward of so many rows took so long: of the thread's own time, as others may keep the machine busy."""
        self._seen.append((rows, seconds))
        self._share = None

    @property
    def share(self) -> float:
        """What a row costs, as a share of a forward of one row."""
        if self._share is None:
            self._share = min(max(self._line(), LEAST), GREATEST)
        return self._share

    def _line(self) -> float:
        times: dict[int, list[float]] = {}
        for rows, seconds in self._seen:
            times.setdefault(rows, []).append(seconds)
        points = [(rows, median(found), len(found)) for rows, found in times.items()]
        count = sum(weight for *_, weight in points)
        mean = sum(rows * weight for rows, _, weight in points) / max(count, 1)
        spread = sum(weight * (rows - mean) ** 2 for rows, _, weight in points)
        if not spread:
            return ROW
        slope = sum(weight * (rows - mean) * seconds for rows, seconds, weight in points) / spread
        one = sum(weight * seconds for _, seconds, weight in points) / count - slope * (mean - 1)
        found = slope / one if one > 0 else GREATEST
        return (ROW * TRUSTED + min(max(found, LEAST), GREATEST) * spread) / (TRUSTED + spread)


def price_for(model: Any) -> RowPrice:
    """That of the model's forwards in this process so far."""
    return _prices.setdefault(model, RowPrice())


_prices: WeakKeyDictionary[Any, RowPrice] = WeakKeyDictionary()
