"""Drafts from what was written before: what once followed the last few tokens may follow them again.

In the prompt and the text itself this is prompt look-up (Saxena 2023); earlier texts help where many are alike.
"""

from collections import OrderedDict
from collections.abc import Sequence

from caw.decoding.drafts.proposer import Guess

SIZES = (5, 4, 3, 2, 1)  # tokens that have to match, the most first
PLACES = 3  # last places of each of the longest n-grams; of these the one whose match goes back farthest is taken
LONG, LONGEST = 8, 16  # longer matches that are better reasons still
KEPT = 12  # tokens kept behind each n-gram of earlier texts
EARLIER = 3  # tokens of such an n-gram
ROOM = 1 << 16  # of them, about 20 MB; the oldest are forgotten
REPLACED = 2  # last tokens that may stand in place of those that a copy would have had
# which match is the better reason to guess, in the order of EXPECTED
TRUST, TRUST_EARLIER, TRUST_REPLACED = {LONGEST: 8, LONG: 7, 5: 6, 4: 5, 3: 4, 2: 3, 1: 0}, 2, 1
# of guesses so trusted, the share of tokens to expect right until a call has seen some. Rounded from a replay of 24
# texts (maths, code, rewriting and chat). That of TRUST_REPLACED is a guess: in a replay of 72 texts 44 of 78 tokens
# were right where Qwen2.5-Coder-0.5B rewrote under EXP, 11 of 147 elsewhere
EXPECTED = {0: 0.25, 1: 0.4, 2: 0.4, 3: 0.45, 4: 0.5, 5: 0.55, 6: 0.75, 7: 0.85, 8: 0.95}


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
        """Return what followed the last tokens of `tail`; nothing if they are new."""
        return self._following.get(tuple(tail[-EARLIER:]), ())


class NgramFollower:
    """One text and where each of its n-grams ended last."""

    def __init__(self, prompt: Sequence[int], earlier: EarlierTexts) -> None:
        self.tokens: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}  # n-gram -> places of the tokens behind it, the last one last
        self._earlier = earlier
        self.extend(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            end = len(self.tokens)
            for size in SIZES:
                if end >= size:
                    places = self._ends.setdefault(tuple(self.tokens[end - size : end]), [])
                    places.append(end)
                    del places[: -PLACES if size == SIZES[0] else -1]
            self.tokens.append(token)

    def after(self, token: int, most: int) -> Guess:
        tail = [*self.tokens[1 - SIZES[0] :], token]
        for size in SIZES:
            places = self._ends.get(tuple(tail[-size:])) if len(tail) >= size else None
            if places:
                length, place = max((self._match(place, token), place) for place in places)
                trust = max(known for known in TRUST if known <= max(length, size))
                return Guess(self._from(place, token, most), TRUST[trust])
            if size == EARLIER and len(tail) >= EARLIER and (followed := self._earlier.after(tail)):
                return Guess(followed[:most], TRUST_EARLIER)
        return self._behind_replaced(token, most)

    def _behind_replaced(self, token: int, most: int) -> Guess:
        """Behind a token that nothing followed so far: it, or it and the one before, may replace those of a copy.

        The copy is the last place of the five tokens before them. The one before may be any token.
        """
        for replaced in range(1, REPLACED + 1):
            end = len(self.tokens) + 1 - replaced
            gram = tuple(self.tokens[max(end - SIZES[0], 0) : end])
            places = [place for place in self._ends.get(gram, ()) if place < end]
            if len(gram) == SIZES[0] and places:
                return Guess(self._from(places[-1] + replaced, token, most), TRUST_REPLACED)
        return Guess()

    def _match(self, place: int, token: int) -> int:
        """Count the tokens before a place that equal the end of the text and `token`; LONGEST at most."""
        if self.tokens[place - 1] != token:
            return 0
        here, length = len(self.tokens), 1
        while length < min(LONGEST, place) and self.tokens[place - 1 - length] == self.tokens[here - length]:
            length += 1
        return length

    def _from(self, place: int, token: int, most: int) -> list[int]:
        """Return the tokens from a place on; at the end of the text the guess continues itself, as repetitions do."""
        here = len(self.tokens)
        tokens: list[int] = []
        for at in range(place, place + most):
            tokens.append(self.tokens[at] if at < here else token if at == here else tokens[at - here - 1])
        return tokens


class NgramDrafter:
    """Looks up the last tokens in the prompt, the text and, unless `alone`, the texts finished before, of any call."""

    expected = EXPECTED

    def __init__(self, *, alone: bool = False) -> None:
        self.earlier = EarlierTexts(0 if alone else ROOM)

    def follow(self, prompt: Sequence[int]) -> NgramFollower:
        return NgramFollower(prompt, self.earlier)

    def learn(self, tokens: Sequence[int]) -> None:
        self.earlier.add(tokens)
