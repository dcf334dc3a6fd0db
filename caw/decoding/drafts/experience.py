"""What is known of a drafter: how often its guesses are right, what they take, and what they have lost so far."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from caw.decoding.drafts.price import Recent, RowPrice

PRIOR, WEIGHT = 0.5, 2.0  # share of right guesses to begin with, and how many guesses it counts as
EXPECTED_WEIGHT = 6.0  # the same where the drafter says what share to expect
MEMORY = 0.98  # how much of the past a new guess leaves
REST = 0.995  # the same for a guess that was not followed, so that a bad start is forgotten
GUESSES = 2.0  # how many measured guesses what a drafter says of its cost counts as
REMEMBERED = 1024  # steps for which they count: learning anew that they do not pay takes the reading of a text
NEAR = 6  # tokens that are read in the time of a guess
LONG = 32  # tokens whose reading tells what a token of it takes
# of costly guesses, so that decoding with them is hardly ever slower than without, whatever shares and prices say
LOST = 0.02  # share of the steps that may be lost by them
FIRST = 2.0  # steps that may be lost besides, to learn how good they are
CREDIT = 8.0  # steps gained that count for later


class Experience:
    """Of one drafter, for a model whose steps' price is known.

    said: what guessing a token costs by the drafter's word, as a share of a step; 0 = nothing, and none is timed.
    expected: shares of right guesses by trust, to begin with.
    """

    def __init__(self, price: RowPrice, said: float = 0.0, expected: Mapping[int, float] | None = None) -> None:
        self.price, self.said, self.expected = price, said, expected or {}
        self._right: dict[int, float] = {}
        self._tried: dict[int, float] = {}
        self._guesses = Recent(said, GUESSES, REMEMBERED)
        self._reading: float | None = None
        self._lost, self._at = 0.0, price.count  # in steps, and the step until which it is settled

    def share(self, trust: int) -> float:
        """Of guesses of this trust that were right, mixed with the prior."""
        prior, weight = (self.expected[trust], EXPECTED_WEIGHT) if trust in self.expected else (PRIOR, WEIGHT)
        return (self._right.get(trust, 0.0) + prior * weight) / (self._tried.get(trust, 0.0) + weight)

    @property
    def cost(self) -> float:
        """What guessing a token takes, as a share of a step. A drafter that looks ahead takes a multiple of what its
        size says, and how much depends on the machine."""
        return self._guesses.share(self.price.count, self.price.step)

    @property
    def measured(self) -> bool:
        """Whether guesses were timed of late, if they cost anything and steps are timed."""
        return not self.said or self.price.step <= 0 or self._guesses.known(self.price.count)

    @property
    def reading(self) -> float:
        """What reading a token of a text takes, as a share of a step; at first what a row costs, times what it said."""
        return self.said * self.price.share if self._reading is None else self._reading

    def affords(self, unread: int = 0) -> bool:
        """Whether guesses have lost little enough for another one, behind tokens that are read first."""
        self._settle()
        return self._lost + unread * self.reading <= FIRST

    def saw(self, trust: int, drafted: int, accepted: int, saved: float = 1.0) -> None:
        """The first `accepted` of `drafted` tokens were right, and each saved so many steps."""
        self._fade(trust, MEMORY)
        self._right[trust] = self._right.get(trust, 0.0) + accepted
        self._tried[trust] = self._tried.get(trust, 0.0) + min(accepted + 1, drafted)
        self._lose(drafted * self.price.share - accepted * saved)

    def rested(self, trust: int) -> None:
        """No guess of this trust was followed."""
        self._fade(trust, REST)

    def guessed(self, tokens: int, seconds: float, unread: int, new: bool) -> None:
        """So many tokens were guessed in one go, behind `unread` tokens that were read first; new: a text's first.

        Reading a prompt is no loss, as that was decided by what the whole text may gain.
        """
        if not self.said or self.price.step <= 0:
            return
        steps = seconds / self.price.step
        if unread <= NEAR and tokens:
            self._guesses.add(self.price.count, seconds / tokens)
        if unread >= LONG:
            self._reading = max(steps - tokens * self.cost, 0.0) / unread
        self._lose(min(tokens * self.cost, steps) if new else steps)

    def _lose(self, steps: float) -> None:
        if self.said:
            self._settle()
            self._lost = max(self._lost + steps, -CREDIT)

    def _settle(self) -> None:
        """With each step a part of what was lost may be lost anew."""
        if self._lost > 0:
            self._lost = max(self._lost - LOST * (self.price.count - self._at), 0.0)
        self._at = self.price.count

    def _fade(self, trust: int, share: float) -> None:
        for counts in (self._right, self._tried):
            if trust in counts:
                counts[trust] *= share


def experience_with(
    small: Any, kind: Hashable, price: RowPrice, said: float, expected: Mapping[int, float]
) -> Experience:
    """With a small model's guesses in texts of one kind of mark; later calls know what earlier ones learnt."""
    return price.drafters.setdefault(small, {}).setdefault(kind, Experience(price, said, expected))
