"""How far drafts are followed, and what each saves."""

from __future__ import annotations

import itertools

import pytest

from caw.decoding.drafts.experience import REMEMBERED, Experience
from caw.decoding.drafts.price import DECISION, ROW, RowPrice
from caw.decoding.drafts.width import Always, Paying, saved_by_each


def paying(
    price: RowPrice | None = None, said: float = 0.0, expected: dict[int, float] | None = None, most: int = 10
) -> Paying:
    return Paying(most, Experience(price or RowPrice(), said, expected))


def told(right: bool, times: int = 40) -> Paying:
    width = paying()
    for _ in range(times):
        width.saw(1, 5, 5 if right else 0)
    return width


def test_as_many_as_pay() -> None:
    assert told(right=True).of(1, 1) == 10
    assert told(right=False).of(1, 1) == 0
    assert 0 < paying().of(1, 1) < 10, "something in between while nothing is known"


def test_each_trust_is_judged_by_its_own_guesses() -> None:
    width = told(right=False)
    assert width.of(2, 1) == paying().of(2, 1) > 0


def test_fewer_where_other_texts_pay_too() -> None:
    """A token more for one of eight texts saves an eighth of a forward."""
    widths = [paying().of(1, batch) for batch in (1, 4, 8, 16)]
    assert widths == sorted(widths, reverse=True) and widths[0] > widths[-1]


def test_by_what_a_right_token_saves() -> None:
    width = paying()
    assert width.of(1, 4) == width.of(1, 4, 0.25)
    widths = [width.of(1, 4, saves) for saves in (0.03, 0.125, 0.25, 0.6)]
    assert widths == sorted(widths) and widths[0] == 0 < widths[1] < widths[-1]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_number_with_the_greatest_speed(share: float) -> None:
    width = paying()
    for trial in range(400):
        width.saw(1, 1, int(trial % 10 < 10 * share))
    tokens = [sum(width.share(1) ** k for k in range(count + 1)) for count in range(11)]
    speeds = [1.0, *(after / (1 + ROW * count + DECISION * before)
                     for count, (before, after) in enumerate(itertools.pairwise(tokens), 1))]  # fmt: skip
    best = max(range(11), key=lambda count: speeds[count])
    assert width.of(1, 1) == (best if speeds[best] > 1.02 else 0)
    assert width.share(1) == pytest.approx(share, abs=0.1)


def test_a_bad_start_is_forgotten() -> None:
    width = told(right=False)
    rests = next(turn for turn in range(2000) if width.of(1, 1))
    assert rests > 100, "and costs little until then"


def test_always() -> None:
    width = Always(3)
    width.saw(0, 3, 0)
    assert width.of(0, 8) == width.most == 3


def test_what_a_drafter_expects_is_where_it_begins() -> None:
    width = paying(expected={1: 0.9, 2: 0.1})
    assert width.share(1) == pytest.approx(0.9) and width.of(1, 1) == 10
    assert width.share(2) == pytest.approx(0.1) and width.of(3, 1) == paying().of(3, 1)
    for _ in range(60):
        width.saw(2, 4, 4)
    assert width.share(2) > 0.85, "but not where it stays"


def test_costly_decisions_are_made_less_often() -> None:
    dear = RowPrice()
    for _ in range(40):
        dear.saw(1, 0.01)
        dear.decided(1, 0.003)
    assert dear.decision == pytest.approx(0.3, rel=0.25) and dear.share == RowPrice().share
    assert paying(dear).of(1, 1) < paying().of(1, 1)
    assert paying(dear).of(1, 8) == 0 < paying().of(1, 8), "a right draft saves an eighth of a step"


def test_costly_rows_and_guesses_are_carried_less() -> None:
    dear = RowPrice()
    for rows in range(1, 40):
        dear.saw(1 + rows % 9, 1 + 0.15 * (rows % 9))
    assert dear.share == pytest.approx(0.15, abs=0.01)
    cheap = paying()
    assert paying(dear).of(1, 1) < cheap.of(1, 1) > paying(said=0.1).of(1, 1)


def test_a_drafter_that_takes_longer_than_it_says_is_asked_for_less() -> None:
    price = RowPrice()
    for _ in range(20):
        price.saw(1, 0.01)
    width = paying(price, 0.1, {0: 0.6}, 5)
    before = width.of(0, 1)
    for _ in range(2):
        width.guessed(1, 0.015, 1, False)
    assert before == 1 and width.of(0, 1) == 0, "one token to begin with"
    for _ in range(REMEMBERED):
        price.saw(1, 0.01)
    assert width.of(0, 1) > 0, "it is tried again"
    free = paying(price, 0.0, {0: 0.6}, 5)
    free.guessed(1, 0.02, 1, False)
    assert free.of(0, 1) >= before, "one that says nothing of its cost is not timed"


def test_a_long_prompt_is_not_read_for_a_short_text() -> None:
    """A row is a tenth of a step, so that 300 tokens are ten: a few more than 20 tokens can save."""
    price = RowPrice()
    for rows in (1, 2, 5, 9, 13) * 20:
        price.saw(rows, 0.03 * (1 + 0.1 * (rows - 1)))
    width = paying(price, 1 / 3, {0: 0.9}, 5)
    assert width.worth_reading(300, 400, 1) and not width.worth_reading(300, 20, 1)
    assert width.worth_reading(10, 20, 1)
    assert not paying(price, 1 / 3, {0: 0.05}, 5).worth_reading(1, 400, 1), "guesses that do not pay"
    assert Always(3).worth_reading(10**6, 1, 8)


def test_reading_has_to_promise_twice_its_price() -> None:
    width = paying(said=0.1, expected={0: 0.9}, most=5)
    expected = [sum(width.share(0) ** k for k in range(count + 1)) for count in range(6)]
    a_token = width.price.share + width.known.cost
    speed = max(expected[n] / (1 + a_token * n + width.price.decision * expected[n - 1]) for n in range(1, 6))
    saved = 100 * (1 - 1 / speed)  # steps, by a text of 100 tokens
    pays = saved / width.known.reading
    assert width.worth_reading(int(0.49 * pays), 100, 1) and not width.worth_reading(int(0.51 * pays), 100, 1)


def lost(steps: float, right: bool) -> Paying:
    """A cheap drafter whose guesses are right or not, and that has lost so many steps."""
    price = RowPrice()
    for _ in range(20):
        price.saw(1, 0.1)
    width = paying(price, 0.1, {0: 0.9})
    for _ in range(20):
        width.guessed(1, 0.01, 1, False)
        width.saw(0, 2, 2 * right)
    width.known.account.lose(steps)
    return width


def test_who_has_lost_much_rests_whatever_is_promised() -> None:
    assert lost(0.0, right=True).of(0, 1) > 0 == lost(50.0, right=True).of(0, 1)
    assert lost(0.0, right=True).affords(20) and not lost(0.0, right=True).affords(20_000)
    assert not lost(50.0, right=True).affords(0)
    assert lost(0.0, right=True).worth_reading(20, 400, 1) and not lost(50.0, right=True).worth_reading(20, 400, 1)


def test_a_right_token_among_many_texts_gains_less() -> None:
    for batch, saves, allows in ((1, None, True), (8, None, False), (8, 0.9, True), (1, 0.05, False)):
        width = lost(0.0, right=True)
        for _ in range(200):
            width.guessed(2, 0.03, 1, False)
            width.saw(0, 2, 2, batch, saves)
        assert width.known.account.allows() == allows, (batch, saves)


def test_prompts_are_read_by_what_reading_took() -> None:
    width = lost(0.0, right=True)
    assert width.worth_reading(200, 40, 1)
    width.guessed(1, 0.1 * (200 * 0.2 + 0.1), 200, True)
    width.known.account.read(-100.0)
    assert not width.worth_reading(200, 40, 1) and width.worth_reading(20, 400, 1)


def test_each_the_same_where_others_wait() -> None:
    assert saved_by_each([9, 3, 5, 9], followed=True) == [0.25] * 4


@pytest.mark.parametrize("remaining", [[7], [7, 7, 7], [1, 2, 3, 4], [8, 8, 2]])
def test_the_last_ones_decide_where_none_waits(remaining: list[int]) -> None:
    saved = saved_by_each(remaining, followed=False)
    assert sum(saved) == pytest.approx(1)
    last = [share for share, left in zip(saved, remaining, strict=True) if left == max(remaining)]
    assert len(set(last)) == 1 and last[0] >= 1 / len(remaining)
    leading = [share for share, left in zip(saved, remaining, strict=True) if left < max(remaining)]
    assert leading == [0.5 / len(remaining)] * len(leading), "those behind may end first"


def test_no_text() -> None:
    assert saved_by_each([], followed=False) == saved_by_each([], followed=True) == []
