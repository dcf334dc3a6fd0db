"""Healing: whether the model itself would go on as the copied tokens behind patches do."""

from __future__ import annotations

from collections.abc import Sequence

from caw.decoding.along import TextReading
from caw.decoding.stopping import StopStrings
from caw.detectable.splicing import Patch


def wounds(
    old: Sequence[int],
    before: TextReading,
    after: TextReading,
    patches: Sequence[Patch],
    rise: float,
    stops: StopStrings,
) -> list[Patch]:
    """Return the patches behind which copied tokens have become unlikely: each before a token that matters and that the
    model would no longer write; if there is none but all of them cost too much, the one behind which they cost most.

    Args:
        old: the text that is patched. before: its reading. after: that of the patched text.
        rise: maximum mean rise of the copied tokens' cost, in nats per token.
    """
    shift, total, count, worst = 0, 0.0, 0, (0.0, patches[0])
    found: list[Patch] = []
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
            if other and matters(old, place, stops):
                found.append(patch)
                break
        total += own
        worst = max(worst, (own, patch), key=lambda pair: pair[0])
    return found or ([worst[1]] if total > rise * count else [])


def matters(tokens: Sequence[int], place: int, stops: StopStrings) -> bool:
    """Tell whether a token is part of a number, a name or code."""
    said = stops.text([tokens[place]])
    if any(char.isdigit() for char in said) or said.strip()[:1].isupper():
        return True
    return stops.text(list(tokens[:place])).count("```") % 2 == 1
