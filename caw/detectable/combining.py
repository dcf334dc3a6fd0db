"""Which patches to put together, and under which sub-key: what each adds to the evidence under all of them."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from caw.detectable.splicing import Patch
from caw.detection.subkeys import keys_of, sums_of
from caw.watermarks import Watermark

V = TypeVar("V")
CHANGE = 1.0  # nats that a change counts as, beside what it loses
STEP = 0.1  # of z, between two tests of a text


@dataclass(frozen=True)
class Evidence:
    """start: of the unmarked text under each sub-key, float64 [V], in units of z. gains: what each patch alone adds to
    it, float64 [V, P]; less where patches are near each other.
    """

    start: np.ndarray
    gains: np.ndarray
    patches: Sequence[Patch]

    def promise(self, weights: Sequence[float] | None = None) -> np.ndarray:
        """Return the most that patches which do not meet may show together, float64 [V]; weights: of gains, [P]."""
        gains = self.gains if weights is None else self.gains * np.array(weights)
        most = [self.start]  # of the first patches by their ends
        for number, before in zip(*self._by_end, strict=True):
            most.append(np.maximum(most[-1], most[before] + gains[:, number]))
        return most[-1]

    def best(self, key: int) -> list[int]:
        """Return the numbers of the patches that show the most together under one sub-key, if gains add up."""
        most: list[tuple[float, list[int]]] = [(0.0, [])]
        for number, before in zip(*self._by_end, strict=True):
            shown, some = most[before]
            most.append(max(most[-1], (shown + self.gains[key, number], [*some, number]), key=lambda each: each[0]))
        return most[-1][1]

    @cached_property
    def _by_end(self) -> tuple[list[int], list[int]]:
        """Numbers of patches by their ends, and how many of these end before each begins."""
        order = sorted(range(len(self.patches)), key=lambda number: self.patches[number].end)
        ends = [self.patches[number].end for number in order]
        return order, [bisect.bisect_right(ends, self.patches[number].start) for number in order]

    def tried(self, needed: float, most: int) -> list[int]:
        """Return the sub-keys that promise enough, at most so many, the most promising first."""
        promise = self.promise()
        order = np.argsort(-promise, kind="stable")[:most]
        return [int(key) for key in order if promise[key] >= needed]


class SubkeyEvidence:
    """The evidence of texts under all sub-keys of a mark, for which `reads_subkeys`."""

    def __init__(self, mark: Watermark) -> None:
        self.keys = keys_of(mark)
        self.mark, self.moments = mark, mark.under_subkey(0).null_moments
        self.gains: dict[Patch, np.ndarray] = {}  # of the one text
        self.known: dict[tuple[int, frozenset[Patch]], float] = {}  # 9 of 10 are asked for again

    def of(self, old: Sequence[int], patches: Sequence[Patch]) -> Evidence:
        """Compare a text, without an end token and always the same, and what each patch alone makes of it."""
        (whole, unit), gains = self._above(old, self.keys), np.zeros((len(self.keys), len(patches)))
        for number, patch in enumerate(patches):
            if patch not in self.gains:
                before = old[max(patch.start - self.mark.window, 0) : patch.start]
                behind = old[patch.end : patch.end + self.mark.window]
                texts = [*before, *patch.tokens, *behind], [*before, *old[patch.start : patch.end], *behind]
                new, was = (self._above(text, self.keys)[0] for text in texts)
                self.gains[patch] = new - was
            gains[:, number] = self.gains[patch]
        return Evidence(whole / unit, gains / unit, patches)

    def shown(self, tokens: Sequence[int], patches: Sequence[Patch], key: int) -> float:
        """What the one text with patches, without an end token, shows under one sub-key, in units of z."""
        name = key, frozenset(patches)
        if name not in self.known:
            above, unit = self._above(tokens, self.keys[key : key + 1])
            self.known[name] = float(above[0]) / unit
        return self.known[name]

    def _above(self, tokens: Sequence[int], keys: np.ndarray) -> tuple[np.ndarray, float]:
        """What tokens show under keys, less what they show by chance, and how much that varies."""
        mean, variance = self.moments
        sums, count = sums_of(self.mark, np.array(tokens), keys)
        return sums - count * mean, max(count * variance, 1.0) ** 0.5


def combined(
    patches: Sequence[Patch], lost: Sequence[float], gains: Sequence[float], best: Sequence[int], needed: float,
    shown: Callable[[Sequence[int]], float], version: Callable[[Sequence[int]], tuple[V, bool] | None],
) -> tuple[list[int], V | None, bool]:  # fmt: skip
    """Put together patches that do not meet until a text is detected; then leave out those that it can do without, the
    dearest first.

    Those are added first that lose the least for what they gain; if that is not enough, the `best`, then those that
    gain the most. One takes the place of those that it meets, if the text shows more of the key then.

    Args:
        best: numbers of those that show the most, if gains add up. needed: about what a detected text shows.
        shown: what some patches together show, in units of z; -inf if they cannot stand together.
        version: the text of some, and whether it is detected; None = not allowed.

    Returns: numbers of the patches, the text that they make and whether it is detected.
    """
    some = [n for n, gain in enumerate(gains) if gain > 0]
    most: tuple[float, list[int], V | None] = (shown([]), [], None)
    by_price = sorted(some, key=lambda n: (CHANGE + lost[n]) / gains[n])
    by_gain = sorted(some, key=lambda n: -gains[n])
    for order in (by_price, [*(n for n in by_price if n in best), *by_gain], by_gain):
        taken, reach, goal = list[int](), shown([]), needed
        for n in order * 2:
            trial = [*(other for other in taken if not patches[n].meets(patches[other])), n]
            if n in taken or (more := shown(trial)) <= reach:
                continue
            if more >= goal:
                if (made := version(trial)) is None:
                    continue
                if made[1]:
                    return *_needed(trial, made[0], lost, version), True
                goal = more + STEP
            taken, reach = trial, more
        while taken and (made := version(taken)) is None:  # together they may change too much
            taken = taken[:-1]
        if taken and made is not None and (made[1] or shown(taken) > most[0]):
            most = shown(taken), taken, made[0]
            if made[1]:
                return *_needed(taken, made[0], lost, version), True
    return most[1], most[2], False


def _needed(
    taken: list[int], text: V, lost: Sequence[float], version: Callable[[Sequence[int]], tuple[V, bool] | None]
) -> tuple[list[int], V]:
    """Leave out patches that a detected text can do without."""
    for n in sorted(taken, key=lambda n: -lost[n]):
        rest = [other for other in taken if other != n]
        made = version(rest) if rest else None
        if made is not None and made[1]:
            taken, text = rest, made[0]
    return taken, text
