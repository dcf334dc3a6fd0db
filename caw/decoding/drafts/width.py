"""Choose how many drafted tokens a forward carries: as many as pay, by the acceptance rate so far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from caw.decoding.drafts.experience import Experience

WORTH = 1.02  # speed that a draft has to promise
MARGIN = 2.0  # what reading a prompt has to promise, over its price: it is paid at once, for a text nobody knows


class Width(ABC):
    """most: tokens that it may ever ask for."""

    most: int

    @abstractmethod
    def of(self, trust: int, batch: int, saves: float | None = None) -> int:
        """Tokens to carry of a guess of this trust, with `batch` texts in the forward.

        saves: what share of a step a right token saves, None = 1 / batch.
        """

    def worth_reading(self, prompt: int, remaining: int, batch: int, saves: float | None = None) -> bool:
        """Tell whether a drafter may read a prompt of so many tokens for a text that may get `remaining` tokens."""
        return True

    def affords(self, unread: int) -> bool:
        """Tell whether a drafter may read so many tokens that a text has got since it was asked last."""
        return True

    def share(self, trust: int) -> float:
        """Rank guesses of this trust; a greater trust is better as long as nothing else is known."""
        return float(trust)

    def saw(self, trust: int, drafted: int, accepted: int, batch: int = 1, saves: float | None = None) -> None:
        """Note that the first `accepted` of `drafted` tokens were right; batch, saves: see `of`."""
        return

    def guessed(self, tokens: int, seconds: float, unread: int, new: bool) -> None:
        """So many tokens were guessed in one go, behind `unread` tokens that were read first; new: a text's first."""
        return


class Always(Width):
    """Always the same number."""

    def __init__(self, most: int) -> None:
        self.most = most

    def of(self, trust: int, batch: int, saves: float | None = None) -> int:
        return self.most


class Paying(Width):
    """The number with the most tokens per second, if a row, a guess and a decision cost fixed shares of a step.

    Each token of a guess is taken to be right with the same chance, that of its trust. A draft of d tokens then gives
    p + p^2 + … + p^d more tokens, for d rows and 1 + p + … + p^(d-1) decisions.

    known: of the drafter, and of the model's steps.
    """

    def __init__(self, most: int, known: Experience) -> None:
        self.most, self.known, self.price = most, known, known.price

    def share(self, trust: int) -> float:
        return self.known.share(trust)

    def of(self, trust: int, batch: int, saves: float | None = None) -> int:
        number = self._best(trust, batch, saves)[0]
        if not number:
            self.known.rested(trust)
        if not self.known.account.allows():
            return 0
        return number if self.known.measured else min(number, 1)  # one that is slower than it says costs little to try

    def worth_reading(self, prompt: int, remaining: int, batch: int, saves: float | None = None) -> bool:
        cost = MARGIN * self.known.reading * prompt / self._saved(batch, saves)
        return self.known.account.allows_reading and remaining * (1 - 1 / self._best(0, batch, saves)[1]) > cost

    def affords(self, unread: int) -> bool:
        return self.known.account.allows(unread * self.known.reading)

    def _saved(self, batch: int, saves: float | None) -> float:
        """Return what an accepted token saves, in steps of one row."""
        return (saves or 1 / batch) * (1 + self.price.share * (batch - 1))

    def _best(self, trust: int, batch: int, saves: float | None) -> tuple[int, float]:
        """Return (the best number of tokens, the speed-up it promises); 0 and 1 if none pays."""
        share, row = self.share(trust), self.price.share
        saved = self._saved(batch, saves)
        price, decision = (row + self.known.cost) / saved, self.price.decision / saved
        best, number, decided, expected = WORTH, 0, 0.0, 1.0
        for count in range(1, self.most + 1):
            decided, expected = expected, expected + share**count
            speed = expected / (1 + price * count + decision * decided)
            if speed > best:
                best, number = speed, count
        return number, best if number else 1.0

    def saw(self, trust: int, drafted: int, accepted: int, batch: int = 1, saves: float | None = None) -> None:
        self.known.saw(trust, drafted, accepted, self._saved(batch, saves))

    def guessed(self, tokens: int, seconds: float, unread: int, new: bool) -> None:
        self.known.guessed(tokens, seconds, unread, new)


def saved_by_each(remaining: Sequence[int], *, followed: bool) -> list[float]:
    """Share of a step that a token more saves in each of B texts, B numbers that add up to 1.

    While other texts wait for a row, a text that ends earlier lets the next one start, so a token saves 1/B of a step.
    When none waits, the batch is done when its last text is: drafts of texts that lead save nothing, unless the longer
    ones end first. Nobody knows which, so each of the two counts half.

    remaining: the most tokens that each may still get. followed: whether other texts wait for a place.
    """
    even = 1 / max(len(remaining), 1)
    if followed:
        return [even] * len(remaining)
    most = max(remaining, default=0)
    behind = remaining.count(most)
    return [(even + (left == most) / behind) / 2 for left in remaining]
