"""Where in a long text the marked part is: a scan over windows, corrected for their number.

Windows of 16, 23, 32, 45, ... tokens lie every quarter of their length along the text; each is tested with the exact
tail of what counts in it (evidence counts once in the whole text, at its first occurrence). Holm's correction over all
windows keeps the chance that any window of an unmarked text is reported below the false-positive rate. The most
significant window is kept, then the next that does not overlap it, and so on; the ends are then moved to where the
evidence gathers. They are estimates; the p-value is that of the window.

Maximal scores of all windows without correction ("WinMax") are no test: their p-values are too small by the number of
windows (Kirchenbauer et al. 2023, arXiv 2306.04634, section 4, say so themselves).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caw.detection.candidates import holm
from caw.detection.detector import Detector, Scored
from caw.detection.statistics import tails
from caw.watermarks import Watermark
from caw.watermarks.green_list import GreenList

SHORTEST = 16
STEPS_PER_LENGTH = 4


@dataclass(frozen=True)
class Region:
    """A part of a text that is marked.

    start, end: tokens [start, end). start_char, end_char: characters of the text that was tokenised, None for ids.
    p_value: of its best window, corrected for all windows of the text.
    """

    start: int
    end: int
    start_char: int | None
    end_char: int | None
    p_value: float


def windows_of(tokens: int) -> np.ndarray:
    """Windows [W, 2] of a text of `tokens` tokens: (start, end), the whole text first."""
    rows = [(0, tokens)]
    length = float(SHORTEST)
    while round(length) < tokens:
        size = round(length)
        step = max(1, size // STEPS_PER_LENGTH)
        starts = list(range(0, tokens - size + 1, step))
        if starts[-1] + size < tokens:
            starts.append(tokens - size)
        rows += [(start, start + size) for start in starts]
        length *= np.sqrt(2)
    return np.array(rows, dtype=np.int64)


def locate(text_or_ids: Any, detector: Detector) -> list[Region]:
    """Marked parts of one text (a str or one flat sequence of ids), in order; [] where none is proven at detector.fpr.

    Raises TypeError for a list of texts, ValueError for a detector with weights or in mode "compat".
    """
    if isinstance(text_or_ids, (list, tuple)) and text_or_ids and isinstance(text_or_ids[0], (str, list, tuple)):
        raise TypeError(f"expected one text, got a list of {len(text_or_ids)}; call locate for each")
    if detector.weights is not None or detector.mode != "exact":
        raise ValueError("windows are tested in mode 'exact' without weights, got another; leave them out")
    (ids,) = detector.ids_of([text_or_ids])
    (scored,) = detector.score([ids])
    spans = _character_spans(text_or_ids, detector) if isinstance(text_or_ids, str) else None
    if spans:
        # a prefix of ids was tokenised with the text and then left out: its characters go with it
        spans = spans[len(spans) - len(ids) :]
    return [
        Region(start, end, spans[start][0] if spans else None, spans[end - 1][1] if spans else None, p)
        for start, end, p in find_regions(scored, detector.watermark, detector.fpr)
    ]


def find_regions(scored: Scored, watermark: Watermark, fpr: float) -> list[tuple[int, int, float]]:
    """(start, end, corrected p-value) of the marked parts of one scored text."""
    if not len(scored.ids):
        return []
    windows = windows_of(len(scored.ids))
    values = np.concatenate([[0.0], np.cumsum(np.where(scored.counted, scored.values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(scored.counted)])
    sums = values[windows[:, 1]] - values[windows[:, 0]]
    inside = counts[windows[:, 1]] - counts[windows[:, 0]]
    if isinstance(watermark, GreenList):
        sums = np.rint(sums)
    corrected = holm(tails(watermark, sums, inside).p_values.tolist())
    regions: list[tuple[int, int, float]] = []
    for i in np.argsort(corrected, kind="stable"):
        start, end = int(windows[i, 0]), int(windows[i, 1])
        if corrected[i] > fpr:
            break
        if all(end <= r[0] or r[1] <= start for r in regions):
            regions.append((start, end, float(corrected[i])))
    return _joined([_sharpen(region, scored, watermark) for region in sorted(regions)])


def _joined(regions: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    """Neighbours with less than the shortest window between them are one region."""
    out: list[tuple[int, int, float]] = []
    for start, end, p in regions:
        if out and start - out[-1][1] < SHORTEST:
            out[-1] = (out[-1][0], end, min(p, out[-1][2]))
        else:
            out.append((start, end, p))
    return out


def _sharpen(region: tuple[int, int, float], scored: Scored, watermark: Watermark) -> tuple[int, int, float]:
    """Move the ends to the part with the greatest excess over halfway between unmarked and the region's own mean."""
    start, end, p = region
    part = slice(start, end)
    counted = scored.counted[part]
    mean = float(scored.values[part][counted].mean())
    null, _ = watermark.null_moments
    excess = np.where(counted, scored.values[part] - (mean + null) / 2, 0.0)
    total = np.concatenate([[0.0], np.cumsum(excess)])
    lowest = np.minimum.accumulate(total)
    stop = int(np.argmax(total - lowest))
    begin = int(np.argmin(total[: stop + 1]))
    return (start + begin, start + stop, p) if stop > begin else region


def _character_spans(text: str, detector: Detector) -> Sequence[tuple[int, int]] | None:
    """Characters of each token; None where the tokenizer does not say."""
    try:
        encoded = detector.tokenizer(
            detector.clean(text), add_special_tokens=False, verbose=False, return_offsets_mapping=True
        )
    except (NotImplementedError, TypeError):
        return None
    spans: Sequence[tuple[int, int]] | None = encoded.get("offset_mapping")
    return spans
