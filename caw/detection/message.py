"""What a result says in one sentence: the same in the library, in JSON, on a terminal and on a page."""

from __future__ import annotations

from caw.io.show import is_p

# share of a text that repeats what stood in it from which on that is worth saying: the z-score is then half of what as
# many new tokens would give. Of 1,000 GSM8K solutions, alone (123 tokens), five (615) and twenty (2,459) together, the
# greatest share was .70 under KGW, .39 under EXP and .31 under SynthID
MOSTLY = 0.75
# where the token alone is the evidence (Unigram), any prose repeats itself: the greatest share was .896
MOSTLY_WITHOUT_CONTEXT = 0.9


def repeats_mostly(tokens: int, repeated: int, window: int) -> bool:
    """Whether so much of a text repeats what stood in it before that little is left as evidence.

    window: how many tokens of context are part of the evidence.
    """
    return repeated > (MOSTLY if window else MOSTLY_WITHOUT_CONTEXT) * tokens


def repetition(tokens: int, repeated: int) -> str:
    """That a text is mostly repetition, and what follows from it."""
    return f"mostly repetition: {repeated} of its {tokens} tokens repeat what came before, which counts once"


def sentence(
    tokens: int, count: int, p: float, fpr: float, *, needed: int, repeated: int = 0, alone: float | None = None
) -> str:
    """The message of a text of `tokens` tokens, of which `count` count.

    needed: how many must count for a p-value of `fpr`. repeated: how many tokens repeat what came before, where the
    text is mostly that, else 0. alone: p-value of the whole text alone, where `p` is corrected for a search of its
    parts; None = it was not searched.
    """
    if not tokens:
        return "the text is empty: nothing to score, p = 1"
    if not count:
        return f"the text is too short to score: none of its {tokens} tokens counts, p = 1"
    searched = alone is not None
    facts = f"{'corrected ' * searched}{is_p(p)}, {count} of {tokens} tokens count"
    if p > fpr and count < needed:
        why = f"is {repetition(tokens, repeated)}" if repeated else "is too short to decide"
        return f"the text {why}: a p-value of {fpr:g} needs {needed} that count ({facts})"
    verdict = "no watermark found" if p > fpr else "watermarked"
    last = f"; the text is {repetition(tokens, repeated)}" if repeated else ""
    if alone is not None and p <= fpr < alone:
        verdict, last = "watermarked in a part", f"; the whole text alone would not pass ({is_p(alone)}){last}"
    elif alone is not None and alone <= fpr < p:
        last = (
            f"; the whole text alone would pass ({is_p(alone)}), not with the correction for searching its parts{last}"
        )
    return f"{verdict} at a false-positive rate of {fpr:g} ({facts}){last}"
