"""How many drafts are carried: by what they brought so far."""

from __future__ import annotations

import pytest

from caw.decoding.drafts.width import Always, Paying


def told(right: bool, times: int = 40) -> Paying:
    width = Paying(10, row=0.05)
    for _ in range(times):
        width.saw(1, 5, 5 if right else 0)
    return width


def test_as_many_as_pay() -> None:
    assert told(right=True).of(1, 1) == 10
    assert told(right=False).of(1, 1) == 0
    assert 0 < Paying(10, row=0.05).of(1, 1) < 10, "something in between while nothing is known"


def test_each_trust_is_judged_by_its_own_guesses() -> None:
    width = told(right=False)
    assert width.of(2, 1) == Paying(10, row=0.05).of(2, 1) > 0


def test_fewer_where_other_texts_pay_too() -> None:
    """A token more for one of eight texts saves an eighth of a forward."""
    widths = [Paying(10, row=0.05).of(1, batch) for batch in (1, 4, 8, 16)]
    assert widths == sorted(widths, reverse=True) and widths[0] > widths[-1]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_number_with_the_greatest_speed(share: float) -> None:
    width = Paying(10, row=0.05)
    for trial in range(400):
        width.saw(1, 1, int(trial % 10 < 10 * share))
    speeds = [sum(width.share(1) ** k for k in range(count + 1)) / (1 + 0.05 * count) for count in range(11)]
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
