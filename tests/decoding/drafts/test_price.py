"""What a row costs, from the times of forwards."""

from __future__ import annotations

import gc

import pytest

from caw.decoding.drafts.price import GREATEST, KEPT, LEAST, ROW, RowPrice, _prices, price_for


def told(times: list[tuple[int, float]]) -> float:
    price = RowPrice()
    for rows, seconds in times:
        price.saw(rows, seconds)
    return price.share


def test_a_line_through_the_times() -> None:
    times = [(rows, 0.03 * (1 + 0.14 * (rows - 1))) for rows in (1, 2, 5, 9, 13) * 4]
    assert told(times) == pytest.approx(0.14, rel=0.05)
    assert told(
        [(rows, seconds * 20 if place % 7 == 3 else seconds) for place, (rows, seconds) in enumerate(times)]
    ) == (pytest.approx(0.14, rel=0.05)), "a forward that was interrupted does not count"


def test_as_long_as_nothing_is_known() -> None:
    assert told([]) == told([(1, 0.1)] * 50) == ROW
    assert told([(1, 0.1), (2, 0.2)]) == pytest.approx(ROW, rel=0.5), "two forwards prove little"


def test_it_stays_within_bounds() -> None:
    assert told([(1, 0.2), (9, 0.1)] * 30) == pytest.approx(LEAST, rel=0.2)
    assert told([(1, 0.0), (9, 0.1)] * 30) == pytest.approx(GREATEST, rel=0.2)


def test_a_wrong_price_is_forgotten() -> None:
    assert told([(1, 0.1), (9, 0.9)] * 9) > 3 * ROW
    assert told([(1, 0.1), (9, 0.9)] * 9 + [(1, 0.1)] * KEPT) == ROW


def test_one_for_each_model() -> None:
    class Model:
        pass

    one, known = Model(), len(_prices)
    assert price_for(one) is price_for(one) is not price_for(Model())
    del one
    gc.collect()
    assert len(_prices) == known, "it keeps no model in memory"
