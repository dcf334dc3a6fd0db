"""Texts of a watermark with sub-keys (`caw.KGW`, `caw.Unigram`) or two kinds of marks (`caw.Recommended`): all count.

    p = 1 - (1 - min_v p_v)^V,   v = 0 ... V - 1         sub-keys
    p = 1 - (1 - min_f p_f)^2,   f = drawn, greedy       families: each by its own detector

Sub-keys are derived by a hash, so the p-values of an unmarked text are independent; they are discrete, which makes p an
upper bound. One operator sums what the evidence scores under all sub-keys, where what counts is the same for all; with
weights, and where the key says what counts (selfhash), each has a sum. Regions are searched under each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from caw import text_scores
from caw.detection.family import alone, family_wise
from caw.detection.message import sentence_of
from caw.detection.result import DetectionResult
from caw.detection.text_weights import TextWeights
from caw.detection.token_scores import score_texts
from caw.detection.weights import level_sum
from caw.op_indices import SELFHASH
from caw.watermarks import Signature, Watermark
from caw.watermarks.green_list import FormattedList

if TYPE_CHECKING:
    from caw.detection.detector import Detector


def reads_subkeys(watermark: Signature) -> bool:
    """Tell whether texts can be compared under all sub-keys by one operator: contexts alone say what counts."""
    native = watermark.under_subkey(0).native if isinstance(watermark, FormattedList) else None
    return native is not None and native.scheme != SELFHASH


def keys_of(watermark: Watermark) -> np.ndarray:
    """int64 [V]: the native keys of the sub-keys, which take a hash each; of a watermark that `reads_subkeys`."""
    natives = (watermark.under_subkey(number).native for number in range(watermark.family))
    return np.array([native.signed_key for native in natives if native is not None])


def sums_of(watermark: Watermark, ids: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, int]:
    """(scores float64 [m] of a text int64 [n] under keys int64 [m], tokens that count), where contexts decide that."""
    one = watermark.under_subkey(0)
    native = one.native
    assert native is not None
    _, counted, _, _ = score_texts(one, [ids], "exact")
    contexts = one.contexts(ids)[counted]
    sums = text_scores.score_keys(contexts, ids[counted], keys, native.scheme, native.threshold)
    return sums, int(counted.sum())


def weighted_sums(marks: Sequence[Watermark], ids: np.ndarray, weights: TextWeights) -> np.ndarray:
    """Weighted scores float64 [V] of one text int64 [n] under each of V sub-keys, up to what they have in common."""
    [levels] = weights.text_levels([ids], marks[0])
    scored = (score_texts(mark, [ids], "exact") for mark in marks)
    return np.array([level_sum(weights, values, levels, counted & (levels > 0)) for values, counted, _, _ in scored])


def detect_subkeys(detector: Detector, ids: np.ndarray) -> DetectionResult:
    """The result of one text int64 [n]: that of its likeliest sub-key or part, corrected for their number."""
    mark, fpr = detector.watermark, alone(detector.fpr, detector.watermark.family)
    if len(mark.parts) > 1:
        return _detect_parts(detector, ids)
    assert isinstance(mark, FormattedList)
    marks = [mark.under_subkey(number) for number in range(mark.subkeys)]
    tried: Iterable[int] = range(mark.subkeys)
    # without regions, and where all have the same evidence and weights, the greatest sum has the least p-value
    alike = not detector.regions and reads_subkeys(mark)
    if alike and isinstance(detector.weights, TextWeights):
        tried = [int(weighted_sums(marks, ids, detector.weights).argmax())]
    elif alike:
        tried = [int(sums_of(mark, ids, keys_of(mark))[0].argmax())]
    found: list[tuple[int, DetectionResult]] = []
    for number in tried:
        [result] = replace(detector, watermark=marks[number], tokenizer=None, fpr=fpr).detect_ids([ids])
        found.append((number, result))
    number, best = min(found, key=lambda one: one[1].p_value)
    return _corrected(best, number, detector)


def _detect_parts(detector: Detector, ids: np.ndarray) -> DetectionResult:
    """The result of a text int64 [n] of a watermark with several parts: of its likeliest part, the first of equals."""
    parts = detector.watermark.parts
    level = alone(detector.fpr, len(parts))
    found = []
    for part in parts:
        own = detector.weights if isinstance(detector.weights, TextWeights) and detector.weights.are_for(part) else None
        tester = replace(detector, watermark=part, tokenizer=None, fpr=level, weights=own)
        found.append(tester.detect_ids([ids])[0])
    best = min(found, key=lambda result: result.p_value)
    # what one family lacks for a verdict, another may have: its score is the one that could still be significant
    decided = any(not result.is_undecided for result in found)
    needed = min(best.num_needed, best.num_scored) if decided else best.num_needed
    out = replace(
        _scaled(best, len(parts), detector), watermark=detector.watermark.name, family=best.watermark, num_needed=needed
    )
    return replace(out, message=sentence_of(out))


def _corrected(result: DetectionResult, number: int, detector: Detector) -> DetectionResult:
    """The result of sub-key `number`, tested at the level that one of them has to reach, as that of all."""
    size = detector.watermark.family
    out = replace(_scaled(result, size, detector), subkey=number, num_subkeys=size)
    return replace(out, message=sentence_of(out))


def _scaled(result: DetectionResult, size: int, detector: Detector) -> DetectionResult:
    """The result of one of `size` tests, made at the level that it has to reach alone, with the p-values of all."""
    p = float(family_wise(np.float64(result.p_value), size))
    regions = result.regions
    if regions is not None:
        regions = tuple(replace(r, p_value=float(family_wise(np.float64(r.p_value), size))) for r in regions)
    whole = result.text_p_value
    if whole is not None:
        whole = float(family_wise(np.float64(whole), size))
    return replace(
        result, p_value=p, fpr=float(detector.fpr), is_watermarked=p <= detector.fpr, regions=regions,
        key_id=detector.watermark.key_id, text_p_value=whole,
    )  # fmt: skip
