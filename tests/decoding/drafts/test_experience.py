"""What is known of a drafter."""

from __future__ import annotations

import gc
import random

import pytest

from caw.decoding.drafts.experience import CREDIT, FIRST, LONG, LOST, REMEMBERED, Experience, experience_with
from caw.decoding.drafts.price import RowPrice


def steps(price: RowPrice, number: int = 10) -> RowPrice:
    """Told of so many steps of a tenth of a second."""
    for _ in range(number):
        price.saw(1, 0.1)
    return price


def test_a_guess_is_measured() -> None:
    """What the drafter says counts as two guesses; a slow one among many does not count; old ones are forgotten."""
    known = Experience(RowPrice(), 0.3)
    known.guessed(2, 0.2, 1, False)
    assert known.cost == 0.3, "as long as nothing is known of steps"
    steps(known.price)
    for seconds in (9.0, *[0.2] * 10):
        known.guessed(2, seconds, 1, False)
    assert known.cost == pytest.approx((2 * 0.3 + 11 * 1.0) / 13)
    known.guessed(2, 99.0, 20, False)
    assert known.cost == pytest.approx((2 * 0.3 + 11 * 1.0) / 13), "what was read besides is no guessing"
    steps(known.price, REMEMBERED)
    assert known.cost == 0.3


def test_reading_is_measured_where_much_is_read() -> None:
    known = Experience(steps(RowPrice()), 0.3)
    assert known.reading == 0.3 * known.price.share
    known.guessed(2, 4.0, LONG - 1, True)
    assert known.reading == 0.3 * known.price.share
    known.guessed(2, 0.1 * (200 * 0.05 + 2 * 0.3), 200, True)
    assert known.reading == pytest.approx(0.05)
    known.guessed(0, 0.0, 200, True)
    assert known.reading == pytest.approx(0.05), "where nothing was guessed nothing was read"
    steps(known.price, REMEMBERED)
    assert known.reading == 0.3 * known.price.share


def test_guesses_lose_little() -> None:
    """None of them is right, whatever the shares say: a fiftieth of the steps, and two more to begin with."""
    known, lost = Experience(RowPrice(), 0.3), 0.0
    for step in range(1, 2001):
        if known.account.allows():
            known.guessed(2, 0.06, 1, False)
            known.saw(0, 2, 0)
            lost += 0.6 + 2 * known.price.share + known.price.decision
        steps(known.price, 1)
        assert lost <= FIRST + LOST * step + 1.5
    assert lost > LOST * 2000, "and it is tried again and again"


def test_what_they_gained_is_lost_at_most_in_part() -> None:
    known = Experience(steps(RowPrice()), 0.3)
    for _ in range(1000):
        known.guessed(2, 0.06, 1, False)
        known.saw(0, 2, 2)
    wrong = 0
    while known.account.allows():
        known.guessed(2, 0.06, 1, False)
        known.saw(0, 2, 0)
        wrong += 1
    assert (CREDIT + FIRST) / 0.8 < wrong < (CREDIT + FIRST) / 0.6 + 2
    assert known.account.allows_reading == known.account.allows() == False  # noqa: E712


@pytest.mark.parametrize("saved, affordable", [(1.0, True), (0.1, False)])
def test_by_what_a_right_token_saves(saved: float, affordable: bool) -> None:
    """Among many texts that is little."""
    known, draw = Experience(steps(RowPrice()), 0.2), random.Random(1)
    for _ in range(40):
        known.guessed(2, 0.04, 1, False)
        known.saw(0, 2, draw.choice((1, 2)), saved)
    assert known.account.allows() == affordable


def test_the_next_prompt_is_read_when_the_last_one_has_been_earned() -> None:
    known = Experience(steps(RowPrice()), 0.3)
    known.guessed(2, 0.1 * (300 * 0.05 + 2 * 0.3), 300, True)
    assert known.account.allows(), "guesses go on"
    assert not known.account.allows_reading
    for _ in range(20):
        known.guessed(2, 0.06, 1, False)
        known.saw(0, 2, 2)
    assert known.account.allows_reading
    known.guessed(2, 0.1 * (300 * 0.05 + 2 * 0.3), 300, True)
    steps(known.price, int((15 - FIRST) / LOST))
    assert known.account.allows_reading, "or forgiven"


def test_catching_up_is_a_loss() -> None:
    known = Experience(steps(RowPrice()), 0.3)
    known.guessed(2, 9.0, 300, False)
    assert not known.account.allows()


def test_prompts_of_texts_that_end_early_lose_little() -> None:
    """A prompt of 300 tokens takes 15 steps to read, a text has 20 tokens, and guesses bring nothing."""
    known, lost = Experience(steps(RowPrice()), 0.3), 0.0
    for text in range(1, 401):
        if known.account.allows_reading:
            known.guessed(1, 0.1 * (300 * 0.05 + 0.3), 300, True)
            known.saw(0, 1, 0)
            lost += 15.3 + known.price.share + known.price.decision
        steps(known.price, 20)
        assert lost <= FIRST + LOST * 20 * text + 16
    assert lost > 0.8 * LOST * 20 * 400


def test_one_that_costs_nothing_is_always_affordable() -> None:
    known = Experience(steps(RowPrice()))
    for _ in range(50):
        known.guessed(2, 1.0, 1, False)
        known.saw(0, 9, 0)
    assert known.cost == 0 and known.measured and known.account.allows()


def test_later_calls_know_what_earlier_ones_learnt() -> None:
    class Model:
        pass

    price, one, other = RowPrice(), Model(), Model()
    first = experience_with(one, "marked", price, 0.3, {})
    assert experience_with(one, "marked", price, 0.3, {}) is first
    assert experience_with(other, "marked", price, 0.3, {}) is not first
    unmarked = experience_with(one, "unmarked", price, 0.3, {})
    assert unmarked is not first and unmarked.account is first.account, "what is lost is the same time"
    del one
    gc.collect()
    assert len(price.drafters) == 1, "it keeps no model in memory"
