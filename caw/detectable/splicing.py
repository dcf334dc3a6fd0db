"""Rejoining and splicing: where a rollout meets the text that it left, and the text that comes of it."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

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

    def covers(self, place: int) -> bool:
        return self.start <= place < self.end

    def meets(self, other: "Patch") -> bool:
        """Tell whether two patches change the same place."""
        return self.start < other.end and other.start < self.end


def spliced(old: Sequence[int], patches: Sequence[Patch]) -> list[int]:
    """Return the text with patches that do not meet."""
    tokens: list[int] = []
    at = 0
    for patch in sorted(patches, key=lambda patch: patch.start):
        tokens += [*old[at : patch.start], *patch.tokens]
        at = patch.end
    return [*tokens, *old[at:]]


def most_gain(patches: Sequence[tuple[Patch, float]]) -> list[int]:
    """Return the numbers of the patches that do not meet and together gain the most, if gains add up."""
    order = sorted(range(len(patches)), key=lambda number: patches[number][0].end)
    best: list[tuple[float, list[int]]] = [(0.0, [])]  # of the first patches by their ends
    ends: list[int] = []
    for number in order:
        patch, gain = patches[number]
        before = best[bisect.bisect_right(ends, patch.start)]
        ends.append(patch.end)
        best.append(max(best[-1], (before[0] + gain, [*before[1], number]), key=lambda each: each[0]))
    return sorted(best[-1][1])


def rejoined(old: Sequence[int], tokens: Sequence[int], start: int, count: int) -> int | None:
    """Return the place in `old` from which on it continues `tokens`, None if it does not.

    The last `count` tokens must all be behind the change at `start` and equal a stretch of the old text behind it, near
    by. One that occurs there twice is a loop, in which nobody knows the place.
    """
    here = len(tokens)
    if here - start - 1 < count:
        return None
    tail = list(tokens[here - count :])
    ends = [
        end
        for end in range(max(start + 1 + count, here + LEAST_SHIFT), min(len(old), here + MOST_SHIFT) + 1)
        if list(old[end - count : end]) == tail
    ]
    return ends[0] if len(ends) == 1 else None


def hopeless(old: Sequence[int], tokens: Sequence[int], start: int, count: int, horizon: int) -> bool:
    """Tell whether a rollout behind a change at `start` cannot rejoin any more within `horizon` tokens.

    It would have to begin to match by then; those of its last tokens that may already do so are counted.
    """
    here, new = len(tokens), len(tokens) - start - 1
    if new >= horizon:
        return True
    most = new + count - horizon  # tokens that must match already
    if most <= 0:
        return False
    tail = list(tokens[here - most :])
    ends = range(max(start + 1 + most, here + LEAST_SHIFT), min(len(old), here + MOST_SHIFT) + 1)
    return not any(list(old[end - most : end]) == tail for end in ends)
