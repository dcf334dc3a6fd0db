"""What a row and a decision cost, from the times of steps."""

from __future__ import annotations

import gc

import pytest

from caw.decoding.drafts.price import DECISION, GREATEST, KEPT, LEAST, OFTEN, ROW, RowPrice, _prices, price_for


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


def test_a_decision_as_a_share_of_a_step() -> None:
    price = RowPrice()
    assert price.decision == DECISION
    for rows in (1, 5, 9, 3) * 12:
        price.saw(rows, 0.03 * (1 + 0.1 * (rows - 1)))
        price.decided(3, 3 * 0.0012)
    assert price.share == pytest.approx(0.1, rel=0.1)
    assert price.decision == pytest.approx(0.04, rel=0.15), "of one row's step, for one text"
    for _ in range(KEPT):
        price.saw(4, 0.0)
        price.decided(1, 1.0)
    assert price.decision <= GREATEST, "where steps take no time at all"


def test_one_slow_decision_does_not_count() -> None:
    price = RowPrice()
    for turn in range(KEPT):
        price.saw(1 + turn % 3, 0.03)
        price.decided(2, 0.2 if turn == KEPT // 2 else 0.0012)
    assert price.decision == pytest.approx(0.02, rel=0.1)


def test_dear_decisions_are_forgotten() -> None:
    """A price that ends all drafts would else never be seen again."""
    price = RowPrice()
    for turn in range(KEPT):
        price.saw(1, 0.03)
        if turn % 4 == 0:
            price.decided(1, 0.009)
    assert price.decision > 10 * DECISION
    for _ in range(KEPT - OFTEN):
        price.saw(1, 0.03)
    assert price.decision > DECISION, "the last ones still count"
    for _ in range(OFTEN):
        price.saw(1, 0.03)
    assert price.decision == DECISION


def test_prices_are_worked_out_now_and_then() -> None:
    price = RowPrice()
    assert price.share == ROW
    for turn in range(OFTEN):
        assert price.share == ROW
        price.saw(1 + 8 * (turn % 2), 0.1 + 0.4 * (turn % 2))
    assert price.share > 2 * ROW


def test_one_for_each_model() -> None:
    class Model:
        pass

    one, known = Model(), len(_prices)
    assert price_for(one) is price_for(one) is not price_for(Model())
    del one
    gc.collect()
    assert len(_prices) == known, "it keeps no model in memory"


def test_seconds_of_a_step() -> None:
    price = RowPrice()
    assert price.step == 0
    price.saw(1, 0.03)
    assert price.step == pytest.approx(0.03), "the first one counts at once"
    for rows in (1, 2, 5, 9, 13) * 4:
        price.saw(rows, 0.03 * (1 + 0.14 * (rows - 1)))
    assert price.step == pytest.approx(0.03, rel=0.05)
