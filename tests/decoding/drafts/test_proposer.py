"""Behind which candidate a draft is carried."""

from types import SimpleNamespace
from typing import Any

import pytest

from caw.decoding.drafts.ngrams import TRUST, TRUST_REPLACED, NgramDrafter
from caw.decoding.drafts.proposer import Earned, Guess, Proposer, Width


class Fixed:
    """The guess behind each token, whatever the text."""

    def __init__(self, guesses: dict[int, Guess]) -> None:
        self.guesses = guesses

    def follow(self, prompt: Any) -> "Fixed":
        return self

    def learn(self, tokens: Any) -> None:
        return

    def extend(self, tokens: Any) -> None:
        return

    def after(self, token: int, most: int) -> Guess:
        return self.guesses.get(token, Guess())


class Text(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def text(ids: list[int], budget: int = 50) -> Any:
    return Text(request=SimpleNamespace(ids=ids, budget=budget), tokens=[])


def chosen(guesses: dict[int, Guess], width: Width) -> tuple[int, list[int], int]:
    chain, trust = Proposer(Fixed(guesses), width, 100).chain(text([9]), [1, 2, 3], 1)
    return chain.root, list(chain.tokens), trust


@pytest.mark.parametrize("width", [Width(4), Earned(4)], ids=["always", "earned"])
def test_the_greater_trust_as_long_as_nothing_is_known(width: Width) -> None:
    low, high = Guess([5, 6], 1), Guess([7, 8], 2)
    assert chosen({1: low, 2: high}, width)[0] == 1 and chosen({1: high, 2: low}, width)[0] == 0
    assert chosen({1: low, 2: low}, width)[0] == 0, "the first of equals"
    assert chosen({2: low}, width)[0] == 1 and chosen({1: Guess((), 9), 2: low}, width)[0] == 1, "none is no guess"
    assert chosen({}, width) == (0, [], 0)


def test_what_is_more_often_right() -> None:
    guesses = {1: Guess([5, 6], 1), 2: Guess([7, 8], 2)}
    assert chosen(guesses, Earned(4, {1: 0.9, 2: 0.5})) == (0, [5, 6], 1)
    width = Earned(4)
    for _ in range(20):
        width.saw(2, 4, 0)
    assert chosen(guesses, width)[0] == 0, "as seen so far"


@pytest.mark.parametrize("always", [True, False])
def test_a_copy_before_a_single_matching_token(always: bool) -> None:
    """Behind 30 one token matches, behind 50 a copy that has it in place of another goes on."""
    drafter, copied = NgramDrafter(), list(range(20))
    proposer = Proposer(drafter, Width(4) if always else Earned(4, drafter.expected), 100)
    chain, trust = proposer.chain(text([30, 31, *copied, 99, *copied[:7]]), [30, 50], 1)
    assert (chain.root, chain.tokens[0], trust) == (1, 8, TRUST_REPLACED) and TRUST[1] < TRUST_REPLACED
