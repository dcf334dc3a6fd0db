"""Drafts from what was written before: what once followed the last few tokens may follow them again.

In the prompt and the text itself this is prompt look-up (Saxena 2023); earlier texts help where many are alike.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from caw.decoding.drafts.drafter import Guess

SIZES = (5, 4, 3, 2, 1)  # tokens that have to match, the most first
KEPT = 8  # tokens kept behind each n-gram of earlier texts
EARLIER = 3  # tokens of such an n-gram
ROOM = 1 << 16  # of them, about 20 MB; the oldest are forgotten
# which match is the better reason to guess: a longer one, and EARLIER tokens of another text over fewer of this one
TRUST, TRUST_EARLIER = {5: 5, 4: 4, 3: 3, 2: 1, 1: 0}, 2


class EarlierTexts:
    """N-grams of finished texts and what followed them last."""

    def __init__(self, room: int = ROOM) -> None:
        self.room = room
        self._following: OrderedDict[tuple[int, ...], tuple[int, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._following)

    def add(self, tokens: Sequence[int]) -> None:
        for end in range(EARLIER, len(tokens)):
            gram = tuple(tokens[end - EARLIER : end])
            self._following.pop(gram, None)
            self._following[gram] = tuple(tokens[end : end + KEPT])
        while len(self._following) > self.room:
            self._following.popitem(last=False)

    def after(self, tail: Sequence[int]) -> tuple[int, ...]:
        """What followed the last tokens of `tail`; nothing if they are new."""
        return self._following.get(tuple(tail[-EARLIER:]), ())


class NgramFollower:
    """One text and where each of its n-grams ended last."""

    def __init__(self, prompt: Sequence[int], earlier: EarlierTexts) -> None:
        self.tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # n-gram -> place of the token behind it
        self._earlier = earlier
        self.extend(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            end = len(self.tokens)
            for size in SIZES:
                if end >= size:
                    self._ends[tuple(self.tokens[end - size : end])] = end
            self.tokens.append(token)

    def after(self, token: int, most: int) -> Guess:
        tail = [*self.tokens[1 - SIZES[0] :], token]
        for size in SIZES:
            place = self._ends.get(tuple(tail[-size:])) if len(tail) >= size else None
            if place is not None:
                return Guess(self._from(place, token, most), TRUST[size])
            if size == EARLIER and len(tail) >= EARLIER and (found := self._earlier.after(tail)):
                return Guess(found[:most], TRUST_EARLIER)
        return Guess()

    def _from(self, place: int, token: int, most: int) -> list[int]:
        """The tokens from a place on; at the end of the text they go on with what is guessed, as repetitions do."""
        here = len(self.tokens)
        found: list[int] = []
        for at in range(place, place + most):
            found.append(self.tokens[at] if at < here else token if at == here else found[at - here - 1])
        return found


class NgramDrafter:
    """Looks up the last tokens in the prompt, the text and the texts finished before.

    Given to several calls it remembers the texts of all of them. alone: it remembers none.
    """

    def __init__(self, *, alone: bool = False) -> None:
        self.earlier = EarlierTexts(0 if alone else ROOM)

    def follow(self, prompt: Sequence[int]) -> NgramFollower:
        return NgramFollower(prompt, self.earlier)

    def learn(self, tokens: Sequence[int]) -> None:
        self.earlier.add(tokens)
