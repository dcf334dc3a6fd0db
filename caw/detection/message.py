"""The message of a result in one sentence: the same in the library, in JSON, on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from caw.io.show import is_p

if TYPE_CHECKING:
    from caw.detection.result import DetectionResult

# share of a text that repeats what stood in it from which on that is worth saying: the z-score is then half of what as
# many new tokens would give. Of 1,000 GSM8K solutions, alone (123 tokens), five (615) and twenty (2,459) together, the
# greatest share was .70 under KGW, .39 under EXP and .31 under SynthID
MOSTLY = 0.75
# where the token alone is the evidence (Unigram), any prose repeats itself: the greatest share was .896
MOSTLY_WITHOUT_CONTEXT = 0.9


def repeats_mostly(tokens: int, repeated: int, window: int) -> bool:
    """Return whether repetition leaves a text little evidence. window: context tokens of a piece of evidence."""
    return repeated > (MOSTLY if window else MOSTLY_WITHOUT_CONTEXT) * tokens


def repetition(tokens: int, repeated: int) -> str:
    return f"mostly repetition: {repeated} of its {tokens} tokens repeat earlier text, which counts once"


def sentence(
    tokens: int, count: int, p: float, fpr: float, *, needed: int, repeated: int = 0, alone: float | None = None,
    corrected: bool = False,
) -> str:  # fmt: skip
    """Return the message of a text of `tokens` tokens, of which `count` count.

    needed: tokens that must count for a p-value of `fpr`. repeated: tokens that repeat earlier text if it is mostly
    repetition, otherwise 0. alone: p-value of the whole text alone if `p` is corrected for a search of its parts; None
    = not searched. corrected: whether `p` is corrected for several readings.
    """
    if not tokens:
        return "the text is empty: nothing to score, p = 1"
    if not count:
        return f"the text is too short to score: none of its {tokens} tokens counts, p = 1"
    facts = f"{'corrected ' * (corrected or alone is not None)}{is_p(p)}, {count} of {tokens} tokens count"
    if p > fpr and count < needed:
        why = f"is {repetition(tokens, repeated)}" if repeated else "is too short to decide"
        return f"the text {why}: a p-value of {fpr:g} requires {needed} that count ({facts})"
    verdict = "no watermark found" if p > fpr else "watermarked"
    last = f"; the text is {repetition(tokens, repeated)}" if repeated else ""
    if alone is not None and p <= fpr < alone:
        verdict, last = "watermarked in a part", f"; the whole text alone would not pass ({is_p(alone)}){last}"
    elif alone is not None and alone <= fpr < p:
        last = (
            f"; the whole text alone would pass ({is_p(alone)}), but not with the correction for searching its "
            f"parts{last}"
        )
    return f"{verdict} at a false-positive rate of {fpr:g} ({facts}){last}"


def sentence_of(result: DetectionResult) -> str:
    """Return the message of a result: its sentence, its payload, its note."""
    said = sentence(
        result.num_tokens, result.num_scored, result.p_value, result.fpr, needed=result.num_needed,
        repeated=result.num_repeated * result.mostly_repetition, alone=result.text_p_value,
        corrected=result.num_readings > 1 or result.num_subkeys > 1 or result.family is not None,
    )  # fmt: skip
    payload = "" if result.payload is None else f", payload {result.payload}"
    if result.family is not None and result.is_watermarked:
        payload += f", marked with {result.family}"
    if result.subkey is not None and result.is_watermarked:
        payload += f", sub-key {result.subkey} of {result.num_subkeys}"
    note = note_of(result)
    return f"{said}{payload}{note and '; '}{note}"


def note_of(result: DetectionResult) -> str:
    """Return how the readings of a text affected its verdict; "" if there was one."""
    if result.given_p_value is None:
        return ""
    given, holds, count = result.given_p_value, f"the text contains {listed(result.undone)}", result.num_readings
    if result.is_watermarked and given > result.fpr:
        return f"{holds}: unchanged it would not pass ({is_p(given)}), with these undone it does"
    if not result.is_watermarked and given <= result.fpr:
        return (
            f"{holds}: unchanged it would pass alone ({is_p(given)}), but not with the correction for {count} readings"
        )
    return f"{holds}: it was tested unchanged and with these undone, and the p-value is corrected for that"


def listed(parts: Sequence[str]) -> str:
    """Join several items in a sentence: "a, b and c"."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
