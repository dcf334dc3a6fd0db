"""Read a payload: the message, the confidence of each bit, and a p-value that allows for the choice among 2^b messages.

A message's score is the sum over counted tokens under its symbols; the message with the greatest score is read. For one
message fixed in advance, that sum has the exact null law of a plain watermark (binomial or gamma), so the maximum over
2^b messages is at least x with probability at most 2^b times the tail at x (Bonferroni): the p-value.

A text does not reveal how many bits it carries, and codes of other sizes share lists and some positions with the
written one: read with another size, a marked text stays marked but gives a wrong number. Sizes with the same number of
bytes share one code, so four readings cover them all, and the written size fits far better than the others.

The code consists of blocks of at most 16 bits, and the score is a sum over blocks: every message of each block is
tried, so the best message is found exactly.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
from scipy import special

from caw.detection.evidence import first_occurrences
from caw.detection.statistics import tails
from caw.watermarks import Watermark
from caw.watermarks.formats.symbols import Symbols
from caw.watermarks.green_list import GreenList
from caw.watermarks.payload import PayloadCode
from caw.watermarks.scheme import Formatted

SIZES = (8, 16, 24, 32)  # the greatest of each number of bytes
FAR = 1e-3  # times the p-value of the size asked for: where another reading is below, the text was written with that


@dataclass(frozen=True)
class PayloadReading:
    """Payload read from one text.

    message: the payload. confidence: of each bit, high bits first, in [0.5, 1] (1 = certain), if the text carries one.
    values: float64 [n] of each token under the message. score, count, z_score: over counted tokens. p_value: corrected
    for 2^bits messages.
    """

    message: int
    confidence: tuple[float, ...]
    values: np.ndarray
    score: float
    count: int
    z_score: float
    p_value: float


def payload_evidence(watermark: Watermark, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (values float64 [n, r], positions int64 [n], evidence int64 [n, E]) of one text int64 [n]."""
    assert isinstance(watermark, Formatted) and isinstance(watermark.scheme, Symbols)
    scores = watermark.scheme.payload_scores(ids)
    return scores.values, scores.positions, scores.evidence


def read_text(watermark: Watermark, ids: np.ndarray) -> tuple[PayloadReading, np.ndarray]:
    """Return (the payload of one text int64 [n], counted bool [n])."""
    values, positions, counted = _counted(watermark, ids)
    return read_payload(watermark, values, positions, counted), counted


def read_payload(
    watermark: Watermark, values: np.ndarray, positions: np.ndarray, counted: np.ndarray
) -> PayloadReading:
    """Read the payload of one text; counted: bool [n]."""
    best, totals = _best(watermark, values, positions, counted)
    assert watermark.code is not None
    weight = _weight(watermark, best.score, best.count)
    return dataclasses.replace(best, confidence=_confidence(watermark.code, totals, best.message, weight))


def fitting_size(watermark: Watermark, ids: np.ndarray, p_value: float) -> int | None:
    """Return the one of SIZES that a text int64 [n] was written with; None if the watermark's own number of bits fits.

    Also returned if both have one code and the message exceeds the own number of bits.

    p_value: of the reading with the own number of bits. The comparison is corrected only for how many more messages the
    other size has: a message of zeros is the same in all sizes.
    """
    code = watermark.code
    assert code is not None
    found: dict[int, float] = {}
    for size in SIZES:
        if size != code.bits:
            other = dataclasses.replace(watermark, payload=None, payload_bits=size)  # type: ignore[call-arg]
            best, _ = _best(other, *_counted(other, ids))
            found[size] = best.p_value * 2.0 ** (code.bits - min(size, code.bits))
    likeliest = min(found, key=lambda size: found[size])
    return likeliest if found[likeliest] < FAR * p_value else None


def _counted(watermark: Watermark, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (values float64 [n, r], positions int64 [n], counted bool [n]) of one text int64 [n]."""
    values, positions, evidence = payload_evidence(watermark, ids)
    return values, positions, first_occurrences(np.zeros(len(ids), np.int64), evidence, np.ones(len(ids), bool))


def _best(
    watermark: Watermark, values: np.ndarray, positions: np.ndarray, counted: np.ndarray
) -> tuple[PayloadReading, list[np.ndarray]]:
    """Return (the reading without confidences, scores of all messages of each block)."""
    code = watermark.code
    assert code is not None
    sums = np.zeros((code.positions, code.r))
    np.add.at(sums, positions[counted], values[counted])
    totals = _totals(code, sums)
    message = 0
    for block, scores in zip(code.blocks, totals, strict=True):
        message = message << block.bits | int(np.argmax(scores))  # ties to the smaller one
    symbols = code.symbols(message)
    own = values[np.arange(len(values)), symbols[positions]]
    score, count = float(own[counted].sum()), int(counted.sum())
    null = tails(watermark, np.array([score]), np.array([count]))
    p_value = min(1.0, float(null.p_values[0]) * 2.0**code.bits)
    return PayloadReading(message, (), own, score, count, float(null.z_scores[0]), p_value), totals


def _totals(code: PayloadCode, sums: np.ndarray) -> list[np.ndarray]:
    """Return the score of every message of each block, float64 [2^bits of the block]; sums: float64 [P, r]."""
    totals, start = [], 0
    for block in code.blocks:
        own = sums[start : start + block.positions]
        totals.append(own[np.arange(block.positions), block.all_symbols].sum(axis=1))
        start += block.positions
    return totals


def _weight(watermark: Watermark, score: float, count: int) -> float:
    """Return the log-likelihood ratio of a unit of score, given how strongly this text is marked."""
    mean = score / max(count, 1)
    if isinstance(watermark, GreenList):
        fraction = watermark.green_fraction
        mean = min(max(mean, fraction), 1 - 0.5 / max(count, 1))
        return float(special.logit(mean) - special.logit(fraction))
    return max(0.0, 1 - 1 / max(mean, 1.0))


def _confidence(code: PayloadCode, totals: list[np.ndarray], message: int, weight: float) -> tuple[float, ...]:
    """Return the probability of each bit, high bits first, over all messages of its block."""
    confidence: list[float] = []
    left = code.bits
    for block, scores in zip(code.blocks, totals, strict=True):
        left -= block.bits
        own = message >> left & ((1 << block.bits) - 1)
        bits = np.arange(block.bits - 1, -1, -1)
        agree = ((np.arange(1 << block.bits)[:, None] >> bits) & 1) == ((own >> bits) & 1)
        confidence += np.maximum(special.softmax(weight * scores) @ agree, 0.5).tolist()
    return tuple(confidence)
