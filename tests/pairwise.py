"""Fewer cases of tests with many parameters: every two values of different parameters still meet."""

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any


def pairwise(*parameters: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Cases in which any two values of two parameters meet; greedy, the same in every run; three values may not."""
    values = [list(parameter) for parameter in parameters]
    rows = list(product(*(range(len(v)) for v in values)))
    met = {row: set(combinations(enumerate(row), 2)) for row in rows}
    missing = set().union(*met.values())
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(met[row] & missing))  # the first of equals
        chosen.append(best)
        missing -= met[best]
    return [tuple(v[i] for v, i in zip(values, row, strict=True)) for row in chosen]
