"""Pairwise cases hold every pair and are few."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from pairwise import pairwise


@pytest.mark.parametrize("sizes", [(3, 2), (6, 9, 2), (4, 4, 4), (1, 5, 3, 2), (2, 2, 2, 2, 2, 2)])
def test_every_pair_of_values_meets(sizes: tuple[int, ...]) -> None:
    cases = pairwise(*map(range, sizes))
    for (a, first), (b, second) in combinations(enumerate(sizes), 2):
        assert {(case[a], case[b]) for case in cases} == set(product(range(first), range(second)))
    least = sorted(sizes)[-1] * sorted(sizes)[-2]
    assert least <= len(cases) <= 1.5 * least + 2
    assert cases == pairwise(*map(range, sizes))
