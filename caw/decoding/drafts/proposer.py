"""Choose the drafts of a forward: a guess behind one of each text's candidates, as long as it pays."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from caw.decoding.drafts.drafter import Drafter, Follower, Foreseer, Guess, RowDrafter
from caw.decoding.drafts.width import Width
from caw.decoding.forward.draft_tree import Chain
from caw.decoding.request import Request
from caw.decoding.sequence import ActiveSequence

ROOTS = 2  # candidates behind which a guess is looked for; the others are hardly ever chosen


class Proposer:
    """Follows the texts of a batch.

    drafter: what guesses. width: how far guesses are followed. vocab_size: ids from there on are no tokens.
    looks_ahead: whether a decision needs what follows the original token; if not, those of a guess are dropped.
    beside: whether forwards have room for an original beside the guessed token; if not, a draft ends with the first
    original that is another one: it is decided there, and the next draft may go on behind what was chosen.
    """

    def __init__(
        self, drafter: Drafter, width: Width, vocab_size: int, *, looks_ahead: bool = False, beside: bool = True
    ) -> None:
        self.drafter, self.width, self.vocab_size = drafter, width, vocab_size
        self.looks_ahead, self.beside = looks_ahead, beside
        self.costly = getattr(drafter, "cost", 0.0) > 0
        self.reads = self.costly and getattr(drafter, "reads", False)
        self._followed: WeakKeyDictionary[ActiveSequence, tuple[Follower, list[int]]] = WeakKeyDictionary()

    def chain(
        self,
        sequence: ActiveSequence,
        candidates: Sequence[int],
        batch: int,
        saves: float | None = None,
        choose: Callable[[float], int] | None = None,
    ) -> tuple[Chain, int]:
        """Return (a draft behind one of the candidates of the next position, its trust); batch, saves: see `Width.of`.

        choose: see `Foreseer`; None = candidate 0 whatever the strength is.

        Never longer than what the text may still have behind that position.
        """
        left = sequence.request.budget - len(sequence.tokens)
        most = min(self.width.most, left - 1)
        if self.costly:
            most = min(most, self.width.of(0, batch, saves))
        if most < 1 or not candidates:
            return Chain(), 0
        unread, new = self._unread(sequence)
        if self.reads:
            worth = self.width.worth_reading(unread, left, batch, saves) if new else self.width.affords(unread)
            if not worth:
                return Chain(), 0
        follower = self._follower(sequence)
        start = time.thread_time() if self.costly else 0.0
        if choose is not None and isinstance(follower, Foreseer):
            root, guess = follower.among(candidates, most, choose)
        else:
            guesses = [follower.after(token, most) for token in candidates[: 1 if self.costly else ROOTS]]
            root = max(range(len(guesses)), key=lambda number: self._worth(guesses[number]))  # the first of equals
            guess = guesses[root]
        if self.costly:
            self.width.guessed(len(guess.tokens), time.thread_time() - start, unread, new)
        if not guess.tokens or not 0 <= root < len(candidates):
            return Chain(), 0
        if not self.costly:  # what it cost to guess is spent
            most = min(most, self.width.of(guess.trust, batch, saves))
        return self._cut(root, guess, most), guess.trust

    def saw(self, trust: int, drafted: int, accepted: int, batch: int = 1, saves: float | None = None) -> None:
        self.width.saw(trust, drafted, accepted, batch, saves)

    def finished(self, sequence: ActiveSequence) -> None:
        """A text has left the batch."""
        if self._followed.pop(sequence, None) is not None:
            self.drafter.learn(sequence.tokens)

    def _unread(self, sequence: ActiveSequence) -> tuple[int, bool]:
        """Return (number of tokens that the drafter has not seen, whether it has seen nothing of the text)."""
        if sequence in self._followed:
            return len(sequence.tokens) - self._followed[sequence][1][0], False
        return len(sequence.request.ids) + len(sequence.tokens), True

    def _follower(self, sequence: ActiveSequence) -> Follower:
        """Return the follower of the text, updated with its new tokens."""
        if sequence not in self._followed:
            self._followed[sequence] = self._follow(sequence.request), [0]
        follower, seen = self._followed[sequence]
        follower.extend(sequence.tokens[seen[0] :])
        seen[0] = len(sequence.tokens)
        return follower

    def _follow(self, request: Request) -> Follower:
        if isinstance(self.drafter, RowDrafter):
            return self.drafter.follow_row(request.ids, request.row)
        return self.drafter.follow(request.ids)

    def _worth(self, guess: Guess) -> tuple[float, int]:
        return (self.width.share(guess.trust), guess.trust) if guess.tokens else (-math.inf, 0)

    def _cut(self, root: int, guess: Guess, most: int) -> Chain:
        """Cut a guess before a token that the model does not have, with its originals; see `beside`."""
        expected = guess.originals if self.looks_ahead else ()
        pairs = list(zip(guess.tokens, expected or guess.tokens, strict=False))[:most]
        wrong = next((at for at, pair in enumerate(pairs) if not all(map(self._has, pair))), len(pairs))
        tokens, originals = [token for token, _ in pairs[:wrong]], [original for _, original in pairs[:wrong]]
        if self.beside or not expected:
            return Chain(root, tokens, originals if expected else ())
        same = next((at for at, pair in enumerate(pairs[:wrong]) if pair[0] != pair[1]), wrong)
        return Chain(root, originals[: same + 1])

    def _has(self, token: int) -> bool:
        return 0 <= token < self.vocab_size
