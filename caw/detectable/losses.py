"""What a change may lose under the model: in its own tokens, and in the copied ones behind them."""

from collections.abc import Sequence

from caw.detectable.splicing import Patch

NUMBERED = 2 / 3  # share of the loss that is allowed in a sentence with a number
BEHIND = 24  # copied tokens behind a patch that are read with it


def limits_of(parts: Sequence[str], loss: float) -> list[float]:
    """Nats that a change may lose at each token: fewer in a sentence with a number, which states something."""
    limits, start = list[float](), 0
    for place, part in enumerate(parts):
        behind = parts[place + 1] if place + 1 < len(parts) else "\n"
        stops = behind[:1].isspace() and part.rstrip().endswith((".", "!", "?"))
        if stops or "\n" in part or place + 1 == len(parts):
            numbered = any(char.isdigit() for each in parts[start : place + 1] for char in each)
            limits += [loss * (NUMBERED if numbered else 1)] * (place + 1 - start)
            start = place + 1
    return limits


def exceeds(
    limits: Sequence[float], likely: Sequence[float], patch: Patch, own: Sequence[float], end: int | None = None
) -> bool:
    """Tell whether a patch loses more than its place may, or half of that at one token behind it.

    likely: nats of the old tokens. own: of the new ones, from the patch's first on. end: of the tokens that are read
    behind it, where another patch begins.
    """
    count, most = len(patch.tokens), limits[patch.start]
    new = own[count : count + BEHIND]
    behind = [was - now for was, now in zip(likely[patch.end : end], new, strict=False)]
    inside = sum(likely[patch.start : patch.end]) - sum(own[:count])
    return inside + sum(behind) > most or max(behind, default=0.0) > most / 2
