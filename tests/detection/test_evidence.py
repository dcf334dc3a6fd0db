"""First occurrences: against counting one by one, by both ways of sorting, and when hashes collide."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caw.detection import evidence
from caw.detection.evidence import first_occurrences

rows = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-1, 2) | st.integers(2**62, 2**62 + 2), st.integers(0, 2), st.booleans()),
    max_size=40,
)


def one_by_one(table: list[tuple[int, int, int, bool]]) -> list[bool]:
    seen: set[Any] = set()
    out = []
    for *row, among in table:
        out.append(among and tuple(row) not in seen)
        if among:
            seen.add(tuple(row))
    return out


def asked(table: list[tuple[int, int, int, bool]]) -> list[bool]:
    columns = np.array(table, dtype=object).reshape(-1, 4)
    return first_occurrences(
        columns[:, 0].astype(np.int64), columns[:, 1:3].astype(np.int64).reshape(-1, 2), columns[:, 3].astype(bool)
    ).tolist()  # fmt: skip


@given(rows)
def test_equals_counting_one_by_one(table: list[tuple[int, int, int, bool]]) -> None:
    assert asked(table) == one_by_one(table)


@pytest.mark.parametrize("multiplier", [0, 1 << 40])
def test_colliding_hashes(multiplier: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A multiplier of nought gives every row the same hash: whole rows are sorted then."""
    rng = np.random.default_rng(0)
    table = [(int(a), int(b), int(c), bool(d)) for a, b, c, d in rng.integers(0, 3, (300, 4))]
    monkeypatch.setattr(evidence, "MULTIPLIER", np.uint64(multiplier))
    assert asked(table) == one_by_one(table)
    assert multiplier or evidence._by_hash([np.array([1, 2])]) is None


def test_no_columns_but_the_owner() -> None:
    got = first_occurrences(np.array([0, 0, 1]), np.empty((3, 0), dtype=np.int64), np.array([True, True, True]))
    assert got.tolist() == [True, False, True]
