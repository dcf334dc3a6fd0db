"""Choose the drafts of a forward: a guess behind one of each text's candidates."""

import math
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from caw.decoding.drafts.drafter import Drafter, Follower, Guess
from caw.decoding.drafts.width import Width
from caw.decoding.forward.draft_tree import Chain
from caw.decoding.request import Request
from caw.decoding.sequence import ActiveSequence

ROOTS = 2  # candidates behind which a guess is looked for; the others are hardly ever chosen


class Proposer:
    """Follows the texts of a batch.

    drafter: what guesses. width: how far guesses are followed. vocab_size: ids from there on are no tokens.
    """

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
