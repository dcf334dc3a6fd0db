"""Test texts for several keys and formats at once.

Each watermark is tested on its own, and Holm's step-down procedure (Holm 1979) corrects for their number: the
probability that an unmarked text is called marked by any of them stays below the false-positive rate, however they
depend on each other.

With detectors that search for regions, a watermark's p-value is that of its whole family (the text and its windows).
Its regions are those that pass an equal share of the rate, so the guarantee holds for all regions of all watermarks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from caw.checks import require_number
from caw.detection.detector import Detector
from caw.detection.ids import split_input, unreadable
from caw.detection.message import note_of
from caw.detection.result import DetectionResult, NotTruth
from caw.detection.statistics import holm
from caw.io.show import is_p


@dataclass(frozen=True)
class KeyListResult(NotTruth):
    """Result of one text for several watermarks.

    results: of each watermark, by name; its p-value is not corrected for the others, but is_watermarked and the message
        use the corrected one. p_values: corrected (Holm), by name.
    matches: names whose corrected p-value is at most fpr, most significant first. message: one sentence for people.
    error: why a text of a list could not be read, otherwise empty; see `DetectionResult`.
    """

    results: dict[str, DetectionResult]
    p_values: dict[str, float]
    matches: tuple[str, ...]
    fpr: float
    message: str
    error: str = ""

    @property
    def is_watermarked(self) -> bool:
        return bool(self.matches)


def detect_any(text_or_ids: Any, detectors: Mapping[str, Detector], fpr: float = 1e-3) -> Any:
    """Test texts for several watermarks.

    Args:
        text_or_ids: as for `detect`. detectors: a name and a Detector of each watermark; their own fpr is not used.
        fpr: false-positive rate for all watermarks together.

    Returns:
        One KeyListResult for a single text, otherwise a list, in order.

    Raises ValueError for no detectors and an fpr outside (0, 1); TypeError and ValueError as `detect` does.
    """
    given: list[Any] = list(detectors.values()) if isinstance(detectors, Mapping) else [detectors]
    for each in given:
        if each is detectors or not isinstance(each, Detector):
            raise TypeError(
                f"detectors must be a mapping of names to Detectors, got {type(each).__name__}; make each with "
                "caw.Detector(tokenizer, watermark)"
            )
    if not detectors:
        raise ValueError("at least one watermark is required, got none; name the watermarks to test for")
    require_number("fpr", fpr, 0, 1, closed=False)
    items, single = split_input(text_or_ids)
    if single and (complaint := unreadable(items[0], "text 0")):
        raise ValueError(complaint)
    found: dict[str, list[DetectionResult]] = {}
    for name, detector in detectors.items():
        results = replace(detector, fpr=fpr)(items)
        assert isinstance(results, list)
        found[name] = results
    out = [_combine({name: results[i] for name, results in found.items()}, fpr) for i in range(len(items))]
    return out[0] if single else out


def _combine(results: dict[str, DetectionResult], fpr: float) -> KeyListResult:
    corrected = holm([r.p_value for r in results.values()])
    p_values = dict(zip(results, corrected.tolist(), strict=True))
    matches = tuple(sorted((n for n, p in p_values.items() if p <= fpr), key=lambda n: (p_values[n], n)))
    if error := next((r.error for r in results.values() if r.error), ""):
        return KeyListResult(results, p_values, (), fpr, error, error)
    tried = f"{len(results)} watermark{'s' * (len(results) > 1)} tried, corrected {is_p(min(p_values.values()))}"
    if matches:
        message = f"watermarked with {' and '.join(matches)} at a false-positive rate of {fpr:g} ({tried})"
    else:
        message = f"no watermark found at a false-positive rate of {fpr:g} ({tried})"
    # the readings of a text are the same for every watermark; the likeliest one says what they meant
    said = note_of(min(results.values(), key=lambda r: r.p_value))
    message += f"; {said}" * bool(said)
    final = {
        name: _matched(result, len(results)) if name in matches else _unmatched(result, p_values[name], len(results))
        for name, result in results.items()
    }
    return KeyListResult(final, p_values, matches, fpr, message)


def _matched(result: DetectionResult, tried: int) -> DetectionResult:
    """Return the result with the regions that pass an equal share of the rate, or the most significant one."""
    if not result.regions:
        return result
    best = min(region.p_value for region in result.regions)
    passing = [r for r in result.regions if r.p_value * tried <= result.fpr or r.p_value == best]
    return replace(result, regions=tuple(replace(r, p_value=min(1.0, r.p_value * tried)) for r in passing))


def _unmatched(result: DetectionResult, corrected: float, tried: int) -> DetectionResult:
    """Return the result of a watermark that would pass alone, but not after correction."""
    if not result.is_watermarked:
        return result
    message = (
        f"no watermark found at a false-positive rate of {result.fpr:g} ({is_p(corrected)} corrected for "
        f"{tried} watermarks; alone it would pass, {is_p(result.p_value)})"
    )
    regions = None if result.regions is None else ()
    return replace(
        result, is_watermarked=False, message=message, payload=None, payload_confidence=None, regions=regions
    )
