"""Statistics of a drafter: acceptance rate of its guesses, their cost, and what they have wasted so far."""

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
# so that decoding with a drafter is hardly ever slower than without, whatever shares and prices say:
LOST = 0.02  # share of the steps that may be lost by it
FIRST = 2.0  # steps that may be lost besides, to learn how good it is
CREDIT = 4.0  # steps gained that count for later, when texts may be of another kind


class Account:
    """Waste budget of a drafter, in steps of one row: what it cost beyond what it saved. Each step adds `LOST` to it.

    There are two: of guesses alone, and of them and the prompts that were read for them. A prompt is read for the whole
    text, so that guesses go on while they earn it, but the next one is not read before.
    """

    def __init__(self, price: RowPrice) -> None:
        self.price = price
        self._guesses, self._all, self._at = 0.0, 0.0, price.count

    def allows(self, steps: float = 0.0) -> bool:
        """Tell whether the waste budget allows n more."""
        self._forgive()
        return self._guesses + steps <= FIRST

    @property
    def allows_reading(self) -> bool:
        """Tell whether the waste budget allows another prompt to be read."""
        self._forgive()
        return self._all <= FIRST

    def lose(self, steps: float) -> None:
        """Charge guesses; less than 0 is a gain."""
        self._forgive()
        self._guesses, self._all = max(self._guesses + steps, -CREDIT), max(self._all + steps, -CREDIT)

    def read(self, steps: float) -> None:
        """Charge the reading of a prompt."""
        self._forgive()
        self._all += steps

    def _forgive(self) -> None:
        part, self._at = LOST * (self.price.count - self._at), self.price.count
        self._guesses, self._all = (lost if lost < 0 else max(lost - part, 0.0) for lost in (self._guesses, self._all))


class Experience:
    """Statistics of one drafter, for a model whose step cost is known.

    said: what guessing a token costs by the drafter's word, as a share of a step; 0 = nothing, and none is timed.
    expected: shares of right guesses by trust, to begin with. account: what it has lost; None = nothing yet.
    """

    def __init__(
        self,
        price: RowPrice,
        said: float = 0.0,
        expected: Mapping[int, float] | None = None,
        account: Account | None = None,
    ) -> None:
        self.price, self.said, self.expected = price, said, expected or {}
        self.account = account or Account(price)
        self._right: dict[int, float] = {}
        self._tried: dict[int, float] = {}
        self._guesses = Recent(said, GUESSES, REMEMBERED)
        self._readings = Recent(0.0, 0.0, REMEMBERED)

    def share(self, trust: int) -> float:
        """Return the share of accepted guesses of this trust, mixed with the prior."""
        prior, weight = (self.expected[trust], EXPECTED_WEIGHT) if trust in self.expected else (PRIOR, WEIGHT)
        return (self._right.get(trust, 0.0) + prior * weight) / (self._tried.get(trust, 0.0) + weight)

    @property
    def cost(self) -> float:
        """Cost of guessing a token, as a share of a step. A drafter that looks ahead takes a multiple of what its
        size says, and how much depends on the machine."""
        return self._guesses.share(self.price.count, self.price.step)

    @property
    def measured(self) -> bool:
        """Tell whether guesses were timed recently, if they cost anything."""
        return not self.said or self._guesses.known(self.price.count)

    @property
    def reading(self) -> float:
        """Cost of reading a token of a text, as a share of a step; at first a row's cost times the drafter's claim."""
        known = self._readings.share(self.price.count, self.price.step)
        return known or self.said * self.price.share

    def saw(self, trust: int, drafted: int, accepted: int, saved: float = 1.0) -> None:
        """Note that the first `accepted` of `drafted` tokens were right, and each saved so many steps."""
        decided = min(accepted + 1, drafted)
        self._fade(trust, MEMORY)
        self._right[trust] = self._right.get(trust, 0.0) + accepted
        self._tried[trust] = self._tried.get(trust, 0.0) + decided
        if self.said:
            self.account.lose(drafted * self.price.share + decided * self.price.decision - accepted * saved)

    def rested(self, trust: int) -> None:
        """Note that no guess of this trust was followed."""
        self._fade(trust, REST)

    def guessed(self, tokens: int, seconds: float, unread: int, new: bool) -> None:
        """So many tokens were guessed in one go, behind `unread` tokens that were read first; new: a text's first."""
        if not self.said or self.price.step <= 0:
            return
        steps, count = seconds / self.price.step, self.price.count
        if tokens and unread <= NEAR:
            self._guesses.add(count, seconds / tokens)
        guessing = min(tokens * self.cost, steps) if unread > NEAR else steps
        if tokens and unread >= LONG:
            self._readings.add(count, (seconds - guessing * self.price.step) / unread)
        self.account.lose(guessing if new else steps)
        if new:
            self.account.read(steps - guessing)

    def _fade(self, trust: int, share: float) -> None:
        for counts in (self._right, self._tried):
            if trust in counts:
                counts[trust] *= share


def experience_with(
    small: Any, kind: Hashable, price: RowPrice, said: float, expected: Mapping[int, float]
) -> Experience:
    """Return the statistics of a small model's guesses for one kind of mark, shared by later calls."""
    account, kinds = price.drafters.setdefault(small, (Account(price), {}))
    return kinds.setdefault(kind, Experience(price, said, expected, account))
