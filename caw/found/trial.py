"""The test of a finished text, before it leaves: as text, by the detector that the public will use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from caw.detection.detector import Detector
from caw.detection.result import DetectionResult
from caw.detection.statistics import fewest_for
from caw.found.deletion import without_words
from caw.io.show import is_p, shown
from caw.settings import Settings
from caw.watermarks import Watermark

DRAWS, FOUND_SHARE = 50, 0.9  # texts with words deleted, and the share of them that must be found


@dataclass(frozen=True)
class Verdict:
    """Whether a text is found; if not, why. result: of the text as it is."""

    found: bool
    reason: str
    result: DetectionResult


class Trial:
    """Tests texts.

    Args:
        detector: whose `fpr` is the level. edits: share of the words that may be deleted later; 0 = none.
    """

    def __init__(self, detector: Detector, edits: float = 0.0) -> None:
        self.detector, self.edits = detector, edits
        self._by_key: dict[Any, Detector] = {None: detector}

    def under(self, key: Any) -> Detector:
        """The detector of texts that brought a key of their own; None = the call's."""
        if key not in self._by_key:
            mark = self.detector.watermark.with_key(key)
            self._by_key[key] = replace(self.detector, watermark=mark)
        return self._by_key[key]

    def __call__(self, text: str, key: Any = None) -> Verdict:
        """Test a text; deterministic."""
        detector = self.under(key)
        [result] = detector([text])  # type: ignore[misc]
        if not result.is_watermarked:
            return Verdict(False, _why_not(result), result)
        if self.edits:
            drawn = detector([without_words(text, self.edits, draw) for draw in range(DRAWS)])
            hits, needed = sum(one.is_watermarked for one in drawn), FOUND_SHARE * DRAWS  # type: ignore[union-attr]
            if hits < needed:
                said = f"with {self.edits:g} of its words deleted it is found in {hits} of {DRAWS} draws"
                return Verdict(False, f"{said}, {needed:g} are needed", result)
        return Verdict(True, "", result)


def _why_not(result: DetectionResult) -> str:
    if result.error:
        return result.error
    if result.is_undecided:
        return f"{result.num_scored} tokens count, {result.num_needed} are needed"
    return f"{is_p(result.p_value)}, at most {result.fpr:g} is needed"


def make_trial(
    settings: Settings, detector: Detector | None, watermark: Watermark | None, tokenizer: Any, most_tokens: int
) -> Trial:
    """The test that the settings of a call ask for; watermark: one that knows the model's vocabulary.

    most_tokens: the most new tokens of a text.

    Raises TypeError or ValueError where no text could pass it, or where detector and watermark do not go together.
    """
    level = settings.found_at
    assert level is not None
    watermark = check_markable(watermark)
    if detector is None:
        detector = Detector(tokenizer, watermark, level)
    if not isinstance(detector, Detector):
        raise TypeError(f"detector must be a caw Detector, got {type(detector).__name__}; see caw.detection.Detector")
    theirs = detector.watermark
    if theirs.name != watermark.name or theirs.key_id != watermark.key_id:
        raise ValueError(
            f"detector must look for the {watermark.name} of key {watermark.key_id}, got {theirs.name} of key "
            f"{theirs.key_id}; make it with the watermark that marks"
        )
    for name in ("gamma", "seeding", "context_width", "format"):
        marked, read = (getattr(mark, name, None) for mark in (watermark, theirs))
        if marked != read:
            raise ValueError(
                f"detector must look for {name} {shown(marked)}, got {shown(read)}; make it with the watermark that "
                "marks"
            )
    check_reach(watermark, level, most_tokens)
    own = tokenizer if detector.tokenizer is None else detector.tokenizer
    return Trial(replace(detector, tokenizer=own, fpr=level), settings.edits)


def beyond_reach(watermark: Watermark, level: float, most_tokens: int) -> int:
    """The fewest tokens of a text that is found at the level, where `most_tokens` are too few for it; else 0."""
    fewest = fewest_for(watermark, level)
    return fewest if fewest > most_tokens else 0


def check_reach(watermark: Watermark, level: float, most_tokens: int) -> None:
    """Raise ValueError where no text of up to `most_tokens` tokens can reach the level."""
    if fewest := beyond_reach(watermark, level, most_tokens):
        raise ValueError(
            f"found_at={level:g} takes at least {fewest} tokens that count, got texts of up to {most_tokens}; allow "
            "more new tokens, or choose a greater found_at"
        )


def check_markable(watermark: Watermark | None) -> Watermark:
    """The watermark; ValueError without one, and for one whose test is not that of one bit."""
    if watermark is None:
        raise ValueError("found_at needs a watermark to find, got None; give one, or leave found_at out")
    if watermark.code is not None:
        raise ValueError("found_at tests one bit, marked or not, got a watermark with a payload; leave one of them out")
    return watermark
