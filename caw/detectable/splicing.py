"""Rejoining and splicing: where a rollout meets the text that it left, and the text that comes of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from caw.decoding.forks import Fork
from caw.decoding.trace import TokenTrace

LONG = 0.25  # nats for each token of a patch but the first
LEAST_SHIFT, MOST_SHIFT = -12, 24  # of the place in the old text, against the place in the new one


@dataclass(frozen=True)
class Patch:
    """A local change of a text R: R[start:end] becomes `tokens`. The tokens behind are the same again."""

    start: int
    end: int
    tokens: tuple[int, ...]

    def trimmed(self, old: Sequence[int]) -> "Patch":
        """Return it without the tokens at its end that are the old text's own."""
        end, tokens = self.end, list(self.tokens)
        while end > self.start + 1 and len(tokens) > 1 and tokens[-1] == old[end - 1]:
            tokens.pop()
            end -= 1
        return Patch(self.start, end, tuple(tokens))

    @property
    def longer(self) -> int:
        """By how many tokens a text becomes longer."""
        return len(self.tokens) - (self.end - self.start)

    def meets(self, other: "Patch") -> bool:
        """Tell whether two patches change the same place."""
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class Rolled:
    """A patch that a text may have. lost: nats, by its tokens. trace: of these. strength: that chose it.

    layout: whether it changes no word.
    """

    patch: Patch
    lost: float
    trace: list[TokenTrace]
    strength: float
    layout: bool = False

    @property
    def cost(self) -> float:
        """Nats that it counts as: a long stretch says more that nobody checks."""
        return max(self.lost, 0.0) + LONG * (max(len(self.patch.tokens), self.patch.end - self.patch.start) - 1)


def spliced(old: Sequence[int], patches: Sequence[Patch]) -> list[int]:
    """Return the text with patches that do not meet."""
    tokens: list[int] = []
    at = 0
    for patch in sorted(patches, key=lambda patch: patch.start):
        tokens += [*old[at : patch.start], *patch.tokens]
        at = patch.end
    return [*tokens, *old[at:]]


def rejoined(old: Sequence[int], tokens: Sequence[int], start: int, count: int) -> int | None:
    """Return the place in `old` from which on it continues `tokens`, None if it does not.

    The last `count` tokens must all be behind the change at `start` and equal a stretch of the old text behind it, near
    by. One that occurs there twice is a loop, in which nobody knows the place.
    """
    if len(tokens) - start - 1 < count:
        return None
    ends = _ends(old, tokens, start, count)
    return ends[0] if len(ends) == 1 else None


def _ends(old: Sequence[int], tokens: Sequence[int], start: int, count: int) -> list[int]:
    """Return the ends of stretches of the old text, behind `start` and near by, that equal the last `count` tokens."""
    here = len(tokens)
    tail, near = list(tokens[here - count :]), range(here + LEAST_SHIFT, min(len(old), here + MOST_SHIFT) + 1)
    return [end for end in near if end > start + count and list(old[end - count : end]) == tail]


def hopeless(old: Sequence[int], tokens: Sequence[int], start: int, count: int, horizon: int) -> bool:
    """Tell whether a rollout behind a change at `start` cannot rejoin any more within `horizon` tokens.

    It would have to begin to match by then; those of its last tokens that may already do so are counted.
    """
    new = len(tokens) - start - 1
    most = new + count - horizon  # tokens that must match already
    return new >= horizon or (most > 0 and not _ends(old, tokens, start, most))


@dataclass(frozen=True)
class Rollout(Fork):
    """A fork behind a change at `place` of the text `old`, unmarked, until it rejoins or cannot any more."""

    place: int = 0
    count: int = 8
    horizon: int = 32

    def over(self, tokens: Sequence[int]) -> bool:
        if self.stem.closed or rejoined(self.old, tokens, self.place, self.count) is not None:
            return True
        return hopeless(self.old, tokens, self.place, self.count, self.horizon)
