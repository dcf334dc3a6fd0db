"""Choose how many drafted tokens a forward carries: as many as were likely to be right so far."""

from collections.abc import Mapping

# what a row more costs, as a share of a forward of one row: .02 with bfloat16 weights, .14 with 4-bit ones. One number
# for all, on the dear side, so that text in which nothing repeats is not slowed down
ROW = 0.15
PRIOR, WEIGHT = 0.5, 2.0  # share of right tokens to begin with, and how many tokens it counts as
EXPECTED_WEIGHT = 6.0  # the same where the drafter says what share to expect
MEMORY = 0.98  # how much of the past a new guess leaves
REST = 0.995  # the same for a guess that was not followed, so that a bad start is forgotten


class Width:
    """Always `most` tokens."""

    def __init__(self, most: int) -> None:
        self.most = most

    def of(self, trust: int, batch: int) -> int:
        """Tokens to carry of a guess of this trust, with `batch` texts in the forward."""
        return self.most

    def share(self, trust: int) -> float:
        """Rank guesses of this trust; a greater trust is better as long as nothing else is known."""
        return float(trust)

    def saw(self, trust: int, drafted: int, accepted: int) -> None:
        """Note that the first `accepted` of `drafted` tokens were right."""


class Earned(Width):
    """At most `most` tokens: those whose chance of being right exceeds the cost of their row.

    Each token of a guess is right with the same chance, the share of right ones among guesses of its trust, so the
    width grows with accepted drafts, and is 0 where they fail.

    expected: shares by trust, to begin with.
    """

    def __init__(self, most: int, expected: Mapping[int, float] | None = None) -> None:
        super().__init__(most)
        self.expected = expected or {}
        self._right: dict[int, float] = {}
        self._tried: dict[int, float] = {}

    def share(self, trust: int) -> float:
        """Return the share of right tokens of guesses of this trust, mixed with the prior."""
        prior, weight = (self.expected[trust], EXPECTED_WEIGHT) if trust in self.expected else (PRIOR, WEIGHT)
        return (self._right.get(trust, 0.0) + prior * weight) / (self._tried.get(trust, 0.0) + weight)

    def of(self, trust: int, batch: int) -> int:
        # a right token saves one text's part of a forward of all texts
        least, share = ROW * batch / (1 + ROW * (batch - 1)), self.share(trust)
        number = next((count for count in range(self.most) if share ** (count + 1) < least), self.most)
        if not number:
            self._fade(trust, REST)
        return number

    def saw(self, trust: int, drafted: int, accepted: int) -> None:
        self._fade(trust, MEMORY)
        self._right[trust] = self._right.get(trust, 0.0) + accepted
        self._tried[trust] = self._tried.get(trust, 0.0) + min(accepted + 1, drafted)

    def _fade(self, trust: int, share: float) -> None:
        for counts in (self._right, self._tried):
            counts[trust] = counts.get(trust, 0.0) * share
