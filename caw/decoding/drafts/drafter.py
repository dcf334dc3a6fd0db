"""Interfaces of drafters. A guess of the next tokens may be wrong, empty or too long: no text depends on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from caw.decoding.row_settings import RowSettings


@dataclass(frozen=True)
class Guess:
    """tokens: what may come, in order. trust: a small number, greater for better reasons to think so (the length of a
    match); how often guesses of equal trust were right decides which one is followed, and how far. originals: of each
    token the original one at its place, where the drafter expects marks; () = the same. They are read where the policy
    looks ahead; what one of the two lists has more than the other is then left out. Captured steps carry one token for
    each place: there the first original that is not the guessed token ends the draft.
    """

    tokens: Sequence[int] = ()
    trust: int = 0
    originals: Sequence[int] = ()


class Follower(Protocol):
    """Follow one text from its prompt on."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens that the text now has."""

    def after(self, token: int, most: int) -> Guess:
        """Guess what follows if `token` is next, at most `most` tokens; changes nothing."""


@runtime_checkable
class Foreseer(Follower, Protocol):
    """A follower that knows which candidate to go on behind. It is asked where the policy looks ahead and steps are not
    captured; `after` elsewhere."""

    def among(self, candidates: Sequence[int], most: int, choose: Callable[[float], int]) -> tuple[int, Guess]:
        """(number of the candidate of the next place that is expected, what may follow that one, at most `most`
        tokens); changes nothing.

        choose: the candidate, by its number, that a strength of the policy would choose: by the text's own key, and
        times its own strength factor. A number that no candidate has stands for no guess.
        """


@runtime_checkable
class Drafter(Protocol):
    """Make followers; one object may serve many calls.

    One whose guesses take time says how much: an attribute `cost`, what a token takes as a share of a forward. It is
    then asked for no more tokens than pay, and only behind the original token. One that knows how often its guesses are
    right says so by trust: an attribute `expected`, a dict of shares. One that reads the prompt at that cost has a true
    attribute `reads`, and is not asked at all where too few new tokens are allowed to be worth it.
    """

    def follow(self, prompt: Sequence[int]) -> Follower:
        """Make a follower for a new text."""

    def learn(self, tokens: Sequence[int]) -> None:
        """Learn from the new tokens of a finished text."""


@runtime_checkable
class RowDrafter(Drafter, Protocol):
    """A drafter that is told each text's own settings, its key among them, as it expects marks."""

    def follow_row(self, prompt: Sequence[int], row: RowSettings) -> Follower:
        """Make a follower for a new text; called instead of `follow`."""
