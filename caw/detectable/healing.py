"""Healing: whether the model itself would go on as the copied tokens behind patches do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caw.decoding.along import TextReading
from caw.decoding.stopping import StopStrings
from caw.detectable.splicing import Patch

SPARE = 0.7  # share of the rise that a text may have once patches are left out: what is left may cost more without them
SENTENCE_ENDS, OPENING = ".!?:", "\"'“‘*_#>-([ "
BEFORE = 6  # tokens that tell whether a sentence begins


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
    old: Sequence[int], before: TextReading, after: TextReading, patches: Sequence[Patch], stops: StopStrings
) -> Healing:
    """Compare the copied tokens of a patched text with those of the old one.

    Args:
        old: the text that is patched. before: its reading. after: that of the patched text.
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
            if other and patch not in wounded and matters(old, place, stops):
                wounded.append(patch)
        risen.append(own)
    return Healing(tuple(ordered), tuple(wounded), tuple(risen), count)


def matters(tokens: Sequence[int], place: int, stops: StopStrings) -> bool:
    """Tell whether a token is part of a number, a name or code. A word is a name if it is capitalised inside a
    sentence."""
    said = stops.text([tokens[place]])
    if any(char.isdigit() for char in said):
        return True
    if said.strip()[:1].isupper():
        before = stops.text(list(tokens[max(0, place - BEFORE) : place + 1]))
        before = before[: len(before) - len(said.lstrip())].rstrip(OPENING)
        if before and before[-1] not in SENTENCE_ENDS and before[-1] != "\n":
            return True
    return stops.text(list(tokens[:place])).count("```") % 2 == 1
