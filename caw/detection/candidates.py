"""Several keys and formats at once: which of them, if any, marked a text?

Each candidate is tested by itself; Holm's step-down procedure (Holm 1979) corrects for their number: the chance that an
unmarked text is called marked by any of them stays below the false-positive rate, whatever they have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caw.detection.detector import DetectionResult, Detector
from caw.detection.ids import split_input
from caw.watermarks.base import require_number


@dataclass(frozen=True)
class CandidatesResult:
    """What one text says about several candidates.

    results: of each candidate, by its name, uncorrected. p_values: corrected (Holm), by name.
    matches: names whose corrected p-value is at most fpr, most significant first. message: one sentence for people.
    """

    results: dict[str, DetectionResult]
    p_values: dict[str, float]
    matches: tuple[str, ...]
    fpr: float
    message: str

    @property
    def is_watermarked(self) -> bool:
        return bool(self.matches)


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Holm-corrected p-values float64 [m], in the order given; each at most 1.

    Equals statsmodels' multipletests(method="holm"): rejecting those at or below a level keeps the family-wise error
    rate below it under any dependence.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    corrected = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    out = np.empty_like(p)
    out[order] = np.minimum(corrected, 1.0)
    return out


def detect_any(text_or_ids: Any, detectors: Mapping[str, Detector], fpr: float = 1e-3) -> Any:
    """Test texts for several candidates.

    Args:
        text_or_ids: as for `detect`. detectors: a name and a Detector of each candidate; their own fpr is not used.
        fpr: share of unmarked texts in which any candidate may be found.

    Returns:
        One CandidatesResult for a single text, else a list, in order.

    Raises ValueError for no candidates and an fpr outside (0, 1); TypeError and ValueError as `detect` does.
    """
    if not detectors:
        raise ValueError("expected at least one candidate, got none; name the watermarks to look for")
    require_number("fpr", fpr, 0, 1, closed=False)
    items, single = split_input(text_or_ids)
    found: dict[str, list[DetectionResult]] = {}
    for name, detector in detectors.items():
        results = detector(items)
        assert isinstance(results, list)
        found[name] = results
    out = [_combine({name: results[i] for name, results in found.items()}, fpr) for i in range(len(items))]
    return out[0] if single else out


def _combine(results: dict[str, DetectionResult], fpr: float) -> CandidatesResult:
    corrected = holm([r.p_value for r in results.values()])
    p_values = dict(zip(results, corrected.tolist(), strict=True))
    matches = tuple(sorted((n for n, p in p_values.items() if p <= fpr), key=lambda n: (p_values[n], n)))
    least = min(p_values.values())
    tried = f"{len(results)} candidate{'s' * (len(results) > 1)} tried, corrected p = {least:.3g}"
    if matches:
        message = f"watermarked with {' and '.join(matches)} at a false-positive rate of {fpr:g} ({tried})"
    else:
        message = f"no watermark found at a false-positive rate of {fpr:g} ({tried})"
    return CandidatesResult(results, p_values, matches, fpr, message)
