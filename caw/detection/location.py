"""Where in a long text the marked parts are: the regions of a test of the text with its parts (see `regions`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from caw.detection.detector import Detector
from caw.detection.ids import split_input
from caw.detection.regions import Region
from caw.detection.result import DetectionResult


def locate(text_or_ids: Any, detector: Detector) -> list[Region]:
    """Marked parts of one text, in order; [] where none is proven at detector.fpr.

    The same as the regions of `detect(..., regions=True)`: the whole text and all its windows are one family of tests.

    Args:
        text_or_ids: a str or one flat sequence of ids.
        detector: in mode "exact", without mid_p, weights and payloads.

    Raises TypeError for a list of texts, ValueError for a detector with options that `regions` does not go with.
    """
    items, single = split_input(text_or_ids)
    if not items:
        return []
    if not single:
        raise TypeError(f"expected one text, got a list of {len(items)}; call locate for each")
    result = replace(detector, regions=True)(text_or_ids)
    assert isinstance(result, DetectionResult) and result.regions is not None
    return list(result.regions)
