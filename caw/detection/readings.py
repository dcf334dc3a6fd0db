"""Readings of a text: unchanged, with the effects of copying undone, and that in plain ASCII punctuation.

A text's readings follow from the text alone. Each with different token ids is tested, and the minimum p-value of m
readings is multiplied by m (Bonferroni), which keeps it valid: for any unmarked text, a share p of all keys gives it p
or less. A text with nothing to undo has one reading and its plain p-value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from caw.detection.message import sentence_of
from caw.detection.repair import plain, repaired
from caw.detection.result import DetectionResult

AS_GIVEN, REPAIRED, PLAIN = "as given", "repaired", "repaired, plain punctuation"


@dataclass(frozen=True)
class Reading:
    """One reading of a text. name: AS_GIVEN, REPAIRED or PLAIN. undone: its changes, in words."""

    name: str
    text: str
    undone: tuple[str, ...] = ()


@dataclass(frozen=True)
class TokenisedText:
    """One text to test. readings: those with different token ids, the unchanged one first. ids: int64 [n] of each."""

    readings: tuple[Reading, ...]
    ids: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, readings: Sequence[Reading], ids: Sequence[np.ndarray]) -> "TokenisedText":
        """Build the text without readings that repeat earlier ids."""
        kept: list[int] = []
        for i, own in enumerate(ids):
            if not any(np.array_equal(own, ids[k]) for k in kept):
                kept.append(i)
        return cls(tuple(readings[i] for i in kept), tuple(ids[i] for i in kept))

    def best(self, results: Sequence[DetectionResult], fpr: float) -> DetectionResult:
        """Return the result of the text; results: of each reading, tested at a level of fpr / m."""
        i = min(range(len(results)), key=lambda i: results[i].p_value)
        given = results[0].p_value if results[0].text_p_value is None else results[0].text_p_value
        return self.corrected(results[i], i, given, fpr)

    def corrected(self, result: DetectionResult, i: int, given: float, fpr: float) -> DetectionResult:
        """Return reading i's result at a level of fpr / m, corrected for m readings. given: the unchanged text's p."""
        m = len(self.readings)
        if m == 1:
            return result
        regions = result.regions
        if regions is not None:
            regions = tuple(replace(region, p_value=min(1.0, m * region.p_value)) for region in regions)
        out = replace(
            result, p_value=min(1.0, m * result.p_value), fpr=fpr, regions=regions, reading=self.readings[i].name,
            num_readings=m, given_p_value=given,
        )  # fmt: skip
        out = replace(out, is_watermarked=out.p_value <= fpr, undone=self.readings[i or m - 1].undone)
        return replace(out, message=sentence_of(out))


def readings_of(text: str) -> list[Reading]:
    """Return the readings of a text that differ as texts, the unchanged one first."""
    own, undone = repaired(text)
    without, signs = plain(own)
    found = [Reading(AS_GIVEN, text)]
    if undone:
        found.append(Reading(REPAIRED, own, undone))
    if signs:
        found.append(Reading(PLAIN, without, (*undone, signs)))
    return found
