"""Interfaces of drafters. A guess of the next tokens may be wrong, empty or too long: no text depends on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Guess:
    """tokens: what may come, in order. trust: a small number, greater for better reasons to think so (the length of a
    match); how often guesses of equal trust were right decides which one is followed, and how far.
    """

    tokens: Sequence[int] = ()
    trust: int = 0


class Follower(Protocol):
    """Follow one text from its prompt on."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens that the text now has."""

    def after(self, token: int, most: int) -> Guess:
        """Guess what follows if `token` is next, at most `most` tokens; changes nothing."""


class Drafter(Protocol):
    """Make followers; one object may serve many calls.

    One that knows how often its guesses are right says so by trust: an attribute `expected`, a dict of shares.
    """

    def follow(self, prompt: Sequence[int]) -> Follower:
        """Make a follower for a new text."""

    def learn(self, tokens: Sequence[int]) -> None:
        """Learn from the new tokens of a finished text."""
