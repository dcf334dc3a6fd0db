"""Healing: whether the model itself would go on as the copied tokens behind patches do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from caw.content import parts_of
from caw.decoding.along import TextReading
from caw.decoding.stopping import StopStrings
from caw.detectable.splicing import Patch

SPARE = 0.7  # share of the rise that a text may have once patches are left out: what is left may cost more without them


@dataclass(frozen=True)
class Healing:
    """What became of the copied tokens behind patches, in the order of their places.

    wounded: those before a token that matters and that the model would no longer write. risen: what the tokens copied
    behind each cost more than in the old text, in nats. copied: how many they are.
    """

    patches: tuple[Patch, ...]
    wounded: tuple[Patch, ...]
    risen: tuple[float, ...]
    copied: int

    def unhealed(self, rise: float) -> list[Patch]:
        """Return the patches to leave out, none if the text has healed: the wounded, then those that cost most until
        the rest may do with `rise` nats per copied token."""
        total = sum(self.risen)
        if not self.wounded and total <= rise * self.copied:
            return []
        out = list(self.wounded)
        costs = sorted(zip(self.risen, self.patches, strict=True), key=lambda pair: pair[0], reverse=True)
        total -= sum(cost for cost, patch in costs if patch in out)
        for cost, patch in costs:
            if total <= SPARE * rise * self.copied:
                break
            if patch not in out:
                out.append(patch)
                total -= cost
        return out


def read_healing(
    old: Sequence[int], before: TextReading, after: TextReading, patches: Sequence[Patch],
    matters: Callable[[int], bool],
) -> Healing:  # fmt: skip
    """Compare the copied tokens of a patched text with those of the old one.

    Args:
        old: the text that is patched. before: its reading. after: that of the patched text. matters: tells of each
            place of the old text whether its token must stay the likeliest, if it was.
    """
    shift, count = 0, 0
    wounded, risen = list[Patch](), list[float]()
    ordered = sorted(patches, key=lambda patch: patch.start)
    for number, patch in enumerate(ordered):
        shift += len(patch.tokens) - (patch.end - patch.start)
        until = ordered[number + 1].start if number + 1 < len(ordered) else len(old)
        own = 0.0
        for place in range(patch.end, until):
            here = place + shift - after.since
            if here >= len(after.own):  # cut at the budget
                break
            own += before.own[place - before.since] - after.own[here]
            count += 1
            other = after.best[here] != old[place] and before.best[place - before.since] == old[place]
            if other and patch not in wounded and matters(place):
                wounded.append(patch)
        risen.append(own)
    return Healing(tuple(ordered), tuple(wounded), tuple(risen), count)


class Matters:
    """Tells which tokens of a text stand in its content (`content.py`): in a number, a name, code or a stated answer.

    names: words that are names even where they begin a sentence.
    """

    def __init__(self, tokens: Sequence[int], stops: StopStrings, names: Collection[str] = ()) -> None:
        self.tokens, self.stops = list(tokens), stops
        self.parts = parts_of(stops.text(self.tokens), names)

    def __call__(self, place: int) -> bool:
        start, end = (len(self.stops.text(self.tokens[:count])) for count in (place, place + 1))
        return any(part.start < end and start < part.end for part in self.parts)
