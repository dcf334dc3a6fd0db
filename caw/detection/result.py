"""What detection says of one text."""

from __future__ import annotations

from dataclasses import dataclass

from caw.detection.regions import Region


@dataclass(frozen=True)
class DetectionResult:
    """What one text says about one key.

    p_value: probability, over keys, that this text, if unmarked, scores at least this much; exact, one-sided. 1 where
        nothing counted.
        With `mid_p`, the mid-p value; in mode "compat", what the other system calls its p-value. With `regions`,
        corrected for the whole text and all its windows.
    z_score: (score - mean) / standard deviation under the null; for reading, never for deciding.
    score: number of green tokens (KGW, Unigram) or sum of -log(1 - u) (EXP) over what counted, times their weights.
    is_watermarked: p_value <= fpr.
    num_tokens, num_scored: tokens of the text, and how many of them counted as evidence.
    token_ids: the tokens. token_scores: score of each, None where it did not count (repeated evidence).
    watermark, key_id: name of the watermark, and eight hex digits naming the key (never the key).
    fpr, mode: as asked. message: one sentence for people.
    payload, payload_confidence: what the text carries, where the watermark has payload_bits and the text is marked:
        the number, and how sure each bit is (high bits first, 0.5 to 1). p_value allows for all payloads then.
    num_repeated: tokens that did not count because they repeat evidence which came before them in the text.
    mostly_repetition: whether so many do that most of what the text's length promises is lost; the message says so.
    num_needed: how many tokens must count for a p-value of fpr; with fewer the text is too short to decide.
    regions: marked parts, in order, where they were searched for: some exactly where is_watermarked. Else None.
    text_p_value: of the whole text alone, uncorrected, where parts were searched for, else None.
    error: why a text of a list could not be read at all (half of a surrogate pair), with p_value 1; else empty.
    """

    p_value: float
    z_score: float
    score: float
    is_watermarked: bool
    num_tokens: int
    num_scored: int
    token_ids: tuple[int, ...]
    token_scores: tuple[float | None, ...]
    watermark: str
    key_id: str
    fpr: float
    mode: str
    message: str
    payload: int | None = None
    payload_confidence: tuple[float, ...] | None = None
    num_repeated: int = 0
    mostly_repetition: bool = False
    num_needed: int = 1
    regions: tuple[Region, ...] | None = None
    text_p_value: float | None = None
    error: str = ""

    @property
    def is_undecided(self) -> bool:
        """Whether nothing could have been found: too few tokens count."""
        return not self.is_watermarked and self.num_scored < self.num_needed
