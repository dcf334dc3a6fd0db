"""Choose the drafts of a forward: a drafter's guess behind one of each text's candidates, as long as it earns.

A guess may be wrong, empty or too long: no text depends on it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

from caw.decoding.forward.draft_tree import Chain
from caw.decoding.request import ActiveSequence, Request

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


@dataclass(frozen=True)
class Guess:
    """What may come, in order. trust: a small number, more for better reasons; how often equals were right tells."""

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


ROOTS = 2  # candidates behind which a guess is looked for; the others are hardly ever chosen


class Proposer:
    """Follows a batch's texts. width: how far guesses are followed. vocab_size: ids from there on are no tokens."""

    def __init__(self, drafter: Drafter, width: Width, vocab_size: int) -> None:
        self.drafter, self.width, self.vocab_size = drafter, width, vocab_size
        self._followed: WeakKeyDictionary[ActiveSequence, tuple[Follower, list[int]]] = WeakKeyDictionary()

    def chain(self, sequence: ActiveSequence, candidates: Sequence[int], batch: int) -> tuple[Chain, int]:
        """Return (a draft behind one of the candidates of the next position, its trust); batch: see `Width.of`.

        Never longer than what the text may still have behind that position.
        """
        most = min(self.width.most, sequence.request.budget - len(sequence.tokens) - 1)
        if most < 1 or not candidates:
            return Chain(), 0
        follower = self._follower(sequence)
        guesses = [follower.after(token, most) for token in candidates[:ROOTS]]
        root = max(range(len(guesses)), key=lambda number: self._worth(guesses[number]))  # the first of equals
        guess = guesses[root]
        if not guess.tokens:
            return Chain(), 0
        tokens = guess.tokens[: min(most, self.width.of(guess.trust, batch))]
        wrong = next((at for at, token in enumerate(tokens) if not 0 <= token < self.vocab_size), len(tokens))
        return Chain(root, tokens[:wrong]), guess.trust

    def saw(self, trust: int, drafted: int, accepted: int) -> None:
        self.width.saw(trust, drafted, accepted)

    def finished(self, sequence: ActiveSequence) -> None:
        """A text has left the batch."""
        if self._followed.pop(sequence, None) is not None:
            self.drafter.learn(sequence.tokens)

    def _follower(self, sequence: ActiveSequence) -> Follower:
        """Return the follower of the text, updated with its new tokens."""
        if sequence not in self._followed:
            self._followed[sequence] = self._follow(sequence.request), [0]
        follower, seen = self._followed[sequence]
        follower.extend(sequence.tokens[seen[0] :])
        seen[0] = len(sequence.tokens)
        return follower

    def _follow(self, request: Request) -> Follower:
        return self.drafter.follow(request.ids)

    def _worth(self, guess: Guess) -> tuple[float, int]:
        return (self.width.share(guess.trust), guess.trust) if guess.tokens else (-math.inf, 0)
