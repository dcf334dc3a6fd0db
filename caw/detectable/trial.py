"""The test of a finished text before it is returned: as text, by the detector that the public will use."""

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caw.decoding.row_settings import RowSettings
from caw.detection.detector import Detector
from caw.detection.family import alone, level_of
from caw.detection.result import DetectionResult
from caw.detection.statistics import fewest_for
from caw.detection.text_weights import TextWeights
from caw.io.show import is_p, shown
from caw.settings import Settings
from caw.watermarks import Signature, Watermark

DRAWS, DETECTED_SHARE = 50, 0.9  # texts with words deleted, and the share of them that must be found


@dataclass(frozen=True)
class Verdict:
    """Whether a text is detected; if not, why. result: of the unchanged text."""

    found: bool
    reason: str
    result: DetectionResult


class Trial:
    """Tests texts.

    Args:
        detector: its `fpr` is the level. edits: share of words that later edits may delete; 0 = none.
        mark: the watermark of the call, which may have fewer sub-keys; None = the detector's.
    """

    def __init__(self, detector: Detector, edits: float = 0.0, mark: Signature | None = None) -> None:
        self.detector, self.edits, self.mark = detector, edits, mark or detector.watermark
        self._by_key: dict[Any, Detector] = {None: detector}

    def under(self, key: Any) -> Detector:
        """Return the detector of a text with its own key; None = the call's key."""
        if key not in self._by_key:
            mark = self.detector.watermark.with_key(key)
            self._by_key[key] = replace(self.detector, watermark=mark)
        return self._by_key[key]

    def marking(self, row: RowSettings) -> Signature:
        """Return what marks a text: the mark of the call, or its part that the text gets."""
        return self.mark.part_for(row)

    def of_subkey(self, text: str, row: RowSettings, number: int | None = None) -> "Trial":
        """Return the test under one sub-key, at the level that it must reach alone: the one with this number, or that
        a text shows most of.

        Its `mark` is what that sub-key marks with. A watermark with one key and one part is tested as it is.
        """
        whole, part = self.under(row.key), self.marking(row)
        assert isinstance(part, Watermark)
        if row.key is not None:
            part = part.with_key(row.key)
        if whole.watermark.family == 1:
            return Trial(whole, self.edits, part)
        weights = whole.weights
        part_weights = weights if isinstance(weights, TextWeights) and weights.are_for(part) else None
        level = level_of(float(whole.fpr), whole.watermark, part)
        if number is None:
            [result] = replace(whole, watermark=part, fpr=level, weights=part_weights)([text])
            number = result.subkey or 0
        alone_mark = part.under_subkey(number)
        detector = replace(whole, watermark=alone_mark, fpr=alone(level, part.family), weights=part_weights)
        return Trial(detector, self.edits, alone_mark)

    def __call__(self, text: str, key: Any = None) -> Verdict:
        """Test a text; deterministic."""
        detector = self.under(key)
        [result] = detector([text])
        if not result.is_watermarked:
            return Verdict(False, _why_not(result), result)
        if self.edits:
            drawn = detector([without_words(text, self.edits, draw) for draw in range(DRAWS)])
            hits, needed = sum(one.is_watermarked for one in drawn), DETECTED_SHARE * DRAWS
            if hits < needed:
                share = f"with {100 * self.edits:g} % of its words deleted it is detected in {hits} of {DRAWS} draws"
                return Verdict(False, f"{share}, {needed:g} are needed", result)
        return Verdict(True, "", result)


def _why_not(result: DetectionResult) -> str:
    if result.error:
        return result.error
    if result.is_undecided:
        return f"{result.num_scored} tokens count, {result.num_needed} are needed"
    return f"{is_p(result.p_value)}, at most {result.fpr:g} is needed"


def make_trial(
    settings: Settings, detector: Detector | None, watermark: Signature | None, tokenizer: Any, most_tokens: int
) -> Trial:
    """Build the test of a call's settings; watermark: one that knows the model's vocabulary.

    most_tokens: maximum new tokens of a text.

    Raises TypeError or ValueError if no text could pass, or if detector and watermark do not match.
    """
    level = settings.level
    assert level is not None
    watermark = check_markable(watermark)
    if detector is None:
        detector = Detector(tokenizer, watermark, level)
    if not isinstance(detector, Detector):
        raise TypeError(f"detector must be a caw Detector, got {type(detector).__name__}; see caw.Detector")
    theirs = detector.watermark
    if theirs.name != watermark.name or theirs.key_id != watermark.key_id:
        raise ValueError(
            f"detector must test for {watermark.name} with key {watermark.key_id}, got {theirs.name} with key "
            f"{theirs.key_id}; build it with the marking watermark"
        )
    for name in ("gamma", "seeding", "context_width", "format"):
        marked, read = (getattr(mark, name, None) for mark in (watermark, theirs))
        if marked != read:
            raise ValueError(
                f"detector must have {name} {shown(marked)}, got {shown(read)}; build it with the marking watermark"
            )
    if not watermark.is_read_by(theirs):
        needed, tried = watermark.family, theirs.family
        raise ValueError(
            f"detector must try the {needed} sub-keys of the watermark that marks, got {tried}; use that watermark"
        )
    part = watermark.part_for(settings)
    check_reach(part, level_of(level, theirs, part), most_tokens)
    reader = tokenizer if detector.tokenizer is None else detector.tokenizer
    return Trial(replace(detector, tokenizer=reader, fpr=level), settings.edits, watermark)


def beyond_reach(watermark: Signature, level: float, most_tokens: int) -> int:
    """Return the minimum length of a detectable text at this level if `most_tokens` is less; otherwise 0."""
    fewest = fewest_for(watermark, level)
    return fewest if fewest > most_tokens else 0


def check_reach(watermark: Signature, level: float, most_tokens: int) -> None:
    """Raise ValueError if no text of up to `most_tokens` tokens can reach the level."""
    if fewest := beyond_reach(watermark, level, most_tokens):
        raise ValueError(
            f"detectable_at={level:g} requires at least {fewest} tokens that count, got texts of at most "
            f"{most_tokens}; raise max_new_tokens or detectable_at"
        )


def check_markable(watermark: Signature | None) -> Signature:
    """Return the watermark. ValueError if there is none, or if it carries more than one bit."""
    if watermark is None:
        raise ValueError("detectable_at requires a watermark, got None; give one, or leave detectable_at out")
    if watermark.code is not None:
        raise ValueError(
            "detectable_at does not support payloads, got a watermark with a payload; leave one of them out"
        )
    return watermark


# kana and Chinese characters, and Thai, Lao, Burmese and Khmer ones
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff"
)
GAP_AND_WORD = re.compile(rf"\s*(?:[{UNSPACED}]|[^\s{UNSPACED}]+)")


def without_words(text: str, share: float, draw: int) -> str:
    """Return the text without this share of its words, rounded up, each with the gap before it.

    Words are parts between white space, and single characters of scripts without spaces (Chinese, Japanese, Thai, Lao,
    Burmese, Khmer). The choice depends on the text and the number of the draw alone.
    """
    words = GAP_AND_WORD.findall(text)
    seed = hashlib.sha256(f"caw/edits/{draw}\0{text}".encode()).digest()
    order = np.random.default_rng(int.from_bytes(seed[:8], "big")).permutation(len(words))
    gone = set(order[: int(np.ceil(share * len(words) - 1e-9))].tolist())
    return "".join(word for place, word in enumerate(words) if place not in gone).lstrip()
