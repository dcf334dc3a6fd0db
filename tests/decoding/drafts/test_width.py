"""How far drafts are followed."""

import pytest

from caw.decoding.drafts.ngrams import EXPECTED
from caw.decoding.drafts.proposer import ROW, Earned

MOST = 10


def told(right: bool) -> Earned:
    width = Earned(MOST)
    for _ in range(40):
        width.saw(1, 5, 5 if right else 0)
    return width


def test_it_grows_with_right_tokens_and_is_none_where_they_are_wrong() -> None:
    assert told(right=True).of(1, 1) == MOST and told(right=False).of(1, 1) == 0
    assert 0 < Earned(MOST).of(1, 1) < MOST, "something in between while nothing is known"
    assert told(right=False).of(2, 1) == Earned(MOST).of(2, 1), "each trust is judged by its own guesses"


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("batch", [1, 4, 8])
def test_each_token_is_likely_to_earn_its_row(share: float, batch: int) -> None:
    """A right one saves one text's part of a forward of all texts."""
    number = Earned(MOST, {1: share}).of(1, batch)
    saved = [share ** (token + 1) * (1 + ROW * (batch - 1)) / batch for token in range(MOST)]
    assert number == sum(part >= ROW for part in saved)


def test_where_nothing_repeats_few_rows_are_lost() -> None:
    """Guesses of a single matching token that are always wrong: of a hundred forwards three carry one, at most."""
    width, rows = Earned(MOST, EXPECTED), 0
    for _ in range(1000):
        if number := width.of(0, 1):
            width.saw(0, number, 0)
            rows += number
    assert 0 < rows <= 30, "and it is tried again"


def test_a_bad_start_is_forgotten() -> None:
    width = told(right=False)
    rests = next(turn for turn in range(2000) if width.of(1, 1))
    assert rests > 100, "and costs little until then"


def test_what_a_drafter_expects_is_where_it_begins() -> None:
    width = Earned(MOST, {1: 0.9, 2: 0.1})
    assert width.share(1) == pytest.approx(0.9) and width.of(1, 1) == MOST
    assert width.share(2) == pytest.approx(0.1) and width.of(3, 1) == Earned(MOST).of(3, 1)
    for _ in range(60):
        width.saw(2, 4, 4)
    assert width.share(2) > 0.85, "but not where it stays"
