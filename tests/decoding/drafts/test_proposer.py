"""Behind which candidate a draft is carried."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest

from caw.decoding.drafts.drafter import Guess
from caw.decoding.drafts.experience import REMEMBERED, Experience
from caw.decoding.drafts.ngrams import TRUST, TRUST_REPLACED, NgramDrafter
from caw.decoding.drafts.price import RowPrice
from caw.decoding.drafts.proposer import Proposer
from caw.decoding.drafts.width import Always, Paying, Width


class Fixed:
    """The guess behind each token, whatever the text."""

    def __init__(self, guesses: dict[int, Guess]) -> None:
        self.guesses = guesses

    def follow(self, prompt: Any) -> Fixed:
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
    """(root, draft, trust) for the candidates 1 and 2."""
    chain, trust = Proposer(Fixed(guesses), width, 100).chain(text([9]), [1, 2, 3], 1)
    return chain.root, list(chain.tokens), trust


def paying(expected: dict[int, float] | None = None) -> Paying:
    return Paying(4, Experience(RowPrice(), expected=expected))


@pytest.mark.parametrize("width", [Always(4), paying()], ids=["always", "paying"])
def test_the_greater_trust_as_long_as_nothing_is_known(width: Width) -> None:
    low, high = Guess([5, 6], 1), Guess([7, 8], 2)
    assert chosen({1: low, 2: high}, width)[0] == 1 and chosen({1: high, 2: low}, width)[0] == 0
    assert chosen({1: low, 2: low}, width)[0] == 0, "the first of equals"
    assert chosen({2: low}, width)[0] == 1 and chosen({1: Guess((), 9), 2: low}, width)[0] == 1, "none is no guess"
    assert chosen({}, width) == (0, [], 0)


def test_what_is_more_often_right() -> None:
    guesses = {1: Guess([5, 6], 1), 2: Guess([7, 8], 2)}
    assert chosen(guesses, paying({1: 0.9, 2: 0.5})) == (0, [5, 6], 1)
    width = paying()
    for _ in range(20):
        width.saw(2, 4, 0)
    assert chosen(guesses, width)[0] == 0, "as seen so far"


@pytest.mark.parametrize(
    ("originals", "drafted", "kept", "alone"),
    [((), [5, 6, 7], (), [5, 6, 7]), ([5, 8, 7], [5, 6, 7], [5, 8, 7], [5, 8]), ([8], [5], [8], [8]),
     ([8] * 9, [5, 6, 7], [8] * 3, [8]), ([8, 100, 8], [5], [8], [8]), ([5, 6], [5, 6], [5, 6], [5, 6])],
)  # fmt: skip
def test_originals_as_far_as_both_go(originals: list[int], drafted: list[int], kept: Any, alone: list[int]) -> None:
    """Without room for both, up to the first that is another one; where nobody looks ahead the draft goes without."""
    cases = {(True, True): (drafted, kept), (True, False): (alone, ()), (False, True): ([5, 6, 7], ())}
    for (ahead, beside), expected in cases.items():
        drafter = Fixed({1: Guess([5, 6, 7], 1, originals)})
        chain, _ = Proposer(drafter, Always(4), 100, looks_ahead=ahead, beside=beside).chain(text([9]), [1], 1)
        assert (chain.tokens, chain.originals) == expected


@pytest.mark.parametrize(("root", "drafted"), [(0, [5]), (2, [5]), (3, []), (-1, [])])
def test_a_follower_that_says_which_candidate(root: int, drafted: list[int]) -> None:
    """Any class may; a candidate that there is not stands for no guess."""

    class Sure(Fixed):
        def among(self, candidates: Any, most: int, choose: Any) -> tuple[int, Guess]:
            return choose(0.5), Guess([5], 1)

    proposer = Proposer(Sure({}), Always(4), 100)
    chain, trust = proposer.chain(text([9]), [1, 2, 3], 1, choose=lambda strength: root)
    assert (list(chain.tokens), chain.root, trust) == (drafted, root if drafted else 0, len(drafted))
    assert not proposer.chain(text([9]), [1, 2, 3], 1)[0].tokens, "asked only where there is something to choose by"


@pytest.mark.parametrize("always", [True, False])
def test_a_copy_before_a_single_matching_token(always: bool) -> None:
    """Behind 30 one token matches, behind 50 a copy that has it in place of another goes on."""
    drafter, copied = NgramDrafter(), list(range(20))
    proposer = Proposer(
        drafter, Always(4) if always else Paying(4, Experience(RowPrice(), expected=drafter.expected)), 100
    )
    chain, trust = proposer.chain(text([30, 31, *copied, 99, *copied[:7]]), [30, 50], 1)
    assert (chain.root, chain.tokens[0], trust) == (1, 8, TRUST_REPLACED) and TRUST[1] < TRUST_REPLACED


class Costly(Fixed):
    cost = 0.3


def test_guesses_that_cost_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was read before them: the prompt first, then what the text has got since."""
    told: list[tuple[int, float, int, bool]] = []

    class Told(Always):
        def guessed(self, *given: Any) -> None:
            told.append(given)

    looks = itertools.count()
    monkeypatch.setattr("caw.decoding.drafts.proposer.time.thread_time", lambda: 0.25 * next(looks))
    for drafter in (Costly({1: Guess([2, 3])}), Fixed({1: Guess([2, 3])})):
        proposer, one = Proposer(drafter, Told(4), 100), text([9, 8])
        for new in (0, 5, 6, 0):
            one.tokens.extend([4] * new)
            assert proposer.chain(one, [1], 1)[0].tokens
    assert told == [(2, 0.25, 2, True), (2, 0.25, 5, False), (2, 0.25, 6, False), (2, 0.25, 0, False)]


class Slow(Costly):
    """Takes .03 s a token, in the first 20 steps .4, and .005 for each that it has missed."""

    now, step, missed, reads = 0.0, 0, 0, True

    def extend(self, tokens: Any) -> None:
        self.missed += len(tokens)

    def after(self, token: int, most: int) -> Guess:
        self.now += most * (0.4 if self.step < 20 else 0.03) + 0.005 * self.missed
        self.missed = 0
        return Guess([2] * most)


@pytest.mark.parametrize("right", [0.7, 0.9])
def test_a_drafter_that_was_slow_for_a_while_comes_back(right: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside steps of .1 s, with new texts: in a long one catching up would cost too much."""
    price, draw, drafter = RowPrice(), random.Random(3), Slow({})
    monkeypatch.setattr("caw.decoding.drafts.proposer.time.thread_time", lambda: drafter.now)
    width = Paying(5, Experience(price, 0.3, {0: right}))
    proposer, drafted = Proposer(drafter, width, 100), []
    for drafter.step in range(2 * REMEMBERED):
        if drafter.step % 50 == 0:
            one = text([9], budget=400)
        chain, trust = proposer.chain(one, [1], 1)
        drafted.append(len(chain.tokens))
        accepted = next((n for n in range(drafted[-1]) if draw.random() > right), drafted[-1])
        if chain.tokens:
            width.saw(trust, drafted[-1], accepted)
        price.saw(1 + drafted[-1], 0.1 * (1 + 0.02 * drafted[-1]))
        one.tokens.extend([4] * (1 + accepted))
    assert drafted[0] and not any(drafted[15:500]), "it rests"
    assert sum(map(bool, drafted[REMEMBERED + 100 :])) > 0.9 * (REMEMBERED - 100), "and comes back"


@pytest.mark.parametrize("reads, affords", [(True, False), (True, True), (False, False)])
def test_what_a_text_has_got_since_is_read_where_it_is_affordable(reads: bool, affords: bool) -> None:
    class Thrifty(Always):
        def affords(self, unread: int) -> bool:
            assert unread == 3
            return affords

    drafter, one = Costly({1: Guess([2, 3])}), text([9])
    drafter.reads = reads  # type: ignore[attr-defined]
    proposer = Proposer(drafter, Thrifty(4), 100)
    assert proposer.chain(one, [1], 1)[0].tokens, "a new one's prompt is another question"
    one.tokens.extend([4, 5, 6])
    assert bool(proposer.chain(one, [1], 1)[0].tokens) == (affords or not reads)


def test_what_a_guess_cost_is_spent() -> None:
    """How far a costly guess is followed was settled before it was made."""

    class Fickle(Always):
        asked = 0

        def of(self, trust: int, batch: int, saves: float | None = None) -> int:
            self.asked += 1
            return 2 if self.asked == 1 else 0

    assert len(Proposer(Costly({1: Guess([2, 3, 4])}), Fickle(4), 100).chain(text([9]), [1], 1)[0].tokens) == 2


@pytest.mark.parametrize("reads, worth", [(True, False), (True, True), (False, False)])
def test_a_prompt_is_read_where_it_pays(reads: bool, worth: bool) -> None:
    class Choosy(Always):
        def worth_reading(self, prompt: int, remaining: int, batch: int, saves: float | None = None) -> bool:
            assert (prompt, remaining) == (3, 8)
            return worth

    drafter = Costly({1: Guess([2, 3])})
    drafter.reads = reads  # type: ignore[attr-defined]
    one = text([9], budget=10)
    one.tokens.extend([4, 4])
    chain, _ = Proposer(drafter, Choosy(4), 100).chain(one, [1], 1)
    assert bool(chain.tokens) == (worth or not reads)
