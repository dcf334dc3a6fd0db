"""What drafts cost, measured while texts are made: a row more in a step, and deciding behind one.

A row is a seventh of a forward with 4-bit weights, where unpacking and arithmetic weigh, a fiftieth with bfloat16
weights of a larger model, where reading does. A decision behind a draft is one or two hundredths of a step of the demo
model. With several texts at once that weighs, as a right draft saves a part of a step.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Any
from weakref import WeakKeyDictionary

ROW = 0.05  # share of a step of one row, as long as nothing is known
TRUSTED = 16.0  # what that counts as: steps times the square of their rows' distance from the mean
LEAST, GREATEST = 0.005, 0.4
KEPT = 64  # steps that count; without drafts among them prices are ROW and DECISION again: wrong ones are found out
DECISION = 0.01  # share of a step that a decision behind a draft takes, as long as nothing is known
DECISIONS = 8.0  # how many of them that counts as
OFTEN = 8  # steps after which prices are worked out again


class Recent:
    """What something took in the last `kept` steps, mixed with a share of a step that is taken to begin with.

    A price that ends all drafts would never be seen again, so what is older is forgotten. weight: what the share counts
    as.
    """

    def __init__(self, share: float, weight: float, kept: int = KEPT) -> None:
        self._share, self._weight, self._kept = share, weight, kept
        self._seen: deque[tuple[int, float, int]] = deque(maxlen=KEPT)

    def add(self, step: int, seconds: float, times: int = 1) -> None:
        """Add one step's time and count."""
        self._seen.append((step, seconds, times))

    def known(self, step: int) -> bool:
        """Tell whether there is anything in this step that is not forgotten."""
        return bool(self._seen) and self._seen[-1][0] > step - self._kept

    def share(self, step: int, one: float) -> float:
        """Return the median cost as a share of a step that takes `one` seconds."""
        seen = self._seen.copy()  # other threads may add to it
        each = [seconds for at, seconds, times in seen if at > step - self._kept for _ in range(times)]
        if one <= 0 or not each:
            return self._share
        return (self._share * self._weight + median(each) / one * len(each)) / (self._weight + len(each))


class RowPrice:
    """A line through the times of the last steps by their rows; of each number of rows the median counts.

    Of the decisions in the same steps it is the median as well, so that one interruption makes none of them dear.
    Texts do not depend on prices, only how many drafts are carried. Times are the thread's own, as others may keep the
    machine busy.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=KEPT)
        self._decided = Recent(DECISION, DECISIONS)
        self._known, self._since = (ROW, DECISION, 0.0), OFTEN
        self.count = 0  # steps so far
        self.drafters: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # see `experience_with`

    def saw(self, rows: int, seconds: float) -> None:
        """A step that made a forward of so many rows, and decided what it would without drafts, took so long."""
        self._seen.append((rows, seconds))
        self._since += 1
        self.count += 1

    def decided(self, texts: int, seconds: float) -> None:
        """Deciding behind a draft of each of so many texts, or seeing that it is wrong, took so long."""
        self._decided.add(self.count, seconds / texts, texts)

    @property
    def share(self) -> float:
        """Cost of a row, as a share of a step of one row."""
        return self._prices()[0]

    @property
    def decision(self) -> float:
        """Cost of a decision behind a draft, as a share of a step of one row."""
        return self._prices()[1]

    @property
    def step(self) -> float:
        """Seconds of a step of one row; 0 as long as nothing is known."""
        return self._prices()[2] or self._line()[1]  # the first ones are not waited for

    def _prices(self) -> tuple[float, float, float]:
        if self._since >= OFTEN:
            share, one = self._line()
            decision = self._decided.share(self.count, one)
            self._known, self._since = (min(max(share, LEAST), GREATEST), min(decision, GREATEST), one), 0
        return self._known

    def _line(self) -> tuple[float, float]:
        """Return the cost of a row, and the seconds of a step of one row."""
        times: dict[int, list[float]] = {}
        for rows, seconds in self._seen.copy():  # other threads may add to it
            times.setdefault(rows, []).append(seconds)
        points = [(rows, median(found), len(found)) for rows, found in times.items()]
        count = max(sum(weight for *_, weight in points), 1)
        mean = sum(rows * weight for rows, _, weight in points) / count
        usual = sum(weight * seconds for _, seconds, weight in points) / count
        spread = sum(weight * (rows - mean) ** 2 for rows, _, weight in points)
        if not spread:
            return ROW, usual / (1 + ROW * (mean - 1))
        slope = sum(weight * (rows - mean) * seconds for rows, seconds, weight in points) / spread
        one = usual - slope * (mean - 1)
        found = slope / one if one > 0 else GREATEST
        share = (ROW * TRUSTED + min(max(found, LEAST), GREATEST) * spread) / (TRUSTED + spread)
        return share, usual / (1 + share * (mean - 1))


def price_for(model: Any) -> RowPrice:
    """Return the price of the model's steps in this process so far."""
    return _prices.setdefault(model, RowPrice())


_prices: WeakKeyDictionary[Any, RowPrice] = WeakKeyDictionary()
