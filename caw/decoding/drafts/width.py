"""How many drafted tokens a forward carries: as many as pay, by how often such guesses were right so far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from caw.decoding.drafts.price import GuessPrice, RowPrice

PRIOR, WEIGHT = 0.5, 2.0  # share of right guesses to begin with, and how many guesses it counts as
EXPECTED_WEIGHT = 6.0  # the same where the drafter says what share to expect
WORTH = 1.02  # speed that a draft has to promise
MEMORY = 0.98  # how much of the past a new guess leaves
REST = 0.995  # the same for a guess that was not followed, so that a bad start is forgotten


class Width(ABC):
    """most: tokens that it may ever ask for."""

    most: int

    @abstractmethod
    def of(self, trust: int, batch: int, saves: float | None = None) -> int:
        """Tokens to carry of a guess of this trust, with `batch` texts in the forward.

        saves: what share of a step a right token saves, None = 1 / batch.
        """

    def worth_reading(self, prompt: int, remaining: int, batch: int, saves: float | None = None) -> bool:
        """Whether a drafter may read a prompt of so many tokens for a text that may get `remaining` tokens."""
        return True

    def share(self, trust: int) -> float:
        """How guesses of this trust compare with others; a greater trust is better as long as nothing else is known."""
        return float(trust)

    def saw(self, trust: int, drafted: int, accepted: int) -> None:
        """The first `accepted` of `drafted` tokens were right."""
        return

    def guessed(self, tokens: int, seconds: float) -> None:
        """So many tokens were guessed in one go."""
        return


class Always(Width):
    """The same number, whatever comes of it."""

    def __init__(self, most: int) -> None:
        self.most = most

    def of(self, trust: int, batch: int, saves: float | None = None) -> int:
        return self.most


class Paying(Width):
    """The number that gives the most tokens a second, if a row and a decision cost fixed shares of a step.

    Each token of a guess is taken to be right with the same chance, that of its trust. A draft of d tokens then gives
    p + p^2 + … + p^d more tokens, for d rows and 1 + p + … + p^(d-1) decisions.

    price: of rows and decisions. guess: what guessing a token costs besides; None = nothing. expected: shares of right
    guesses by trust, to begin with.
    """

    def __init__(
        self, most: int, price: RowPrice, guess: GuessPrice | None = None, expected: Mapping[int, float] | None = None
    ) -> None:
        self.most, self.price, self.expected = most, price, expected or {}
        self.guess = guess or GuessPrice(0.0, price)
        self._right: dict[int, float] = {}
        self._tried: dict[int, float] = {}

    def share(self, trust: int) -> float:
        """Of guesses of this trust that were right, mixed with the prior."""
        prior, weight = (self.expected[trust], EXPECTED_WEIGHT) if trust in self.expected else (PRIOR, WEIGHT)
        return (self._right.get(trust, 0.0) + prior * weight) / (self._tried.get(trust, 0.0) + weight)

    def of(self, trust: int, batch: int, saves: float | None = None) -> int:
        number = self._best(trust, batch, saves)[0]
        if not number:
            self._fade(trust, REST)
        return number

    def worth_reading(self, prompt: int, remaining: int, batch: int, saves: float | None = None) -> bool:
        """A token of a prompt is taken to cost the drafter what a row costs a step, times its share of one."""
        cost = self.guess.said * self.price.share * prompt * self._part(batch, saves)
        return remaining * (1 - 1 / self._best(0, batch, saves)[1]) > cost

    def _part(self, batch: int, saves: float | None) -> float:
        """A step of one row, as a share of what a text's token saves of a step of all."""
        return 1 / ((saves or 1 / batch) * (1 + self.price.share * (batch - 1)))

    def _best(self, trust: int, batch: int, saves: float | None) -> tuple[int, float]:
        """(how many tokens pay best, the speed that they promise); 0 and 1 where none do."""
        share, row = self.share(trust), self.price.share
        part = self._part(batch, saves)
        price, decision = (row + self.guess.share) * part, self.price.decision * part
        best, number, decided, expected = WORTH, 0, 0.0, 1.0
        for count in range(1, self.most + 1):
            decided, expected = expected, expected + share**count
            speed = expected / (1 + price * count + decision * decided)
            if speed > best:
                best, number = speed, count
        return number, best if number else 1.0

    def saw(self, trust: int, drafted: int, accepted: int) -> None:
        self._fade(trust, MEMORY)
        self._right[trust] = self._right.get(trust, 0.0) + accepted
        self._tried[trust] = self._tried.get(trust, 0.0) + min(accepted + 1, drafted)

    def guessed(self, tokens: int, seconds: float) -> None:
        self.guess.saw(tokens, seconds)

    def _fade(self, trust: int, share: float) -> None:
        for counts in (self._right, self._tried):
            if trust in counts:
                counts[trust] *= share
