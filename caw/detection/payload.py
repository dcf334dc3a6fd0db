"""Which payload a text carries, how sure each bit is, and a p-value that allows for the choice among 2^b messages.

The score of a message is the sum of what counted tokens say under its symbols; the message with the greatest score is
read. For one message fixed in advance that sum has the exact null law of a plain watermark (binomial or gamma), so the
greatest of 2^b is at least x with probability of at most 2^b times the tail at x (Bonferroni): the p-value.

The code consists of blocks of at most 16 bits, and the score is a sum over blocks: every message of each is tried, and
the best of all messages found exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import special

from caw.detection.statistics import tails
from caw.watermarks import Watermark
from caw.watermarks.green_list import GreenList
from caw.watermarks.payload import PayloadCode


@dataclass(frozen=True)
class PayloadReading:
    """What one text says.

    message: the payload read. confidence: of each bit, high bits first, in [0.5, 1] (1 = sure), if the text carries
    one. values: float64 [n] of each token under the message. score, count, z_score: over counted tokens.
    p_value: corrected for 2^bits messages.
    """

    message: int
    confidence: tuple[float, ...]
    values: np.ndarray
    score: float
    count: int
    z_score: float
    p_value: float


def payload_evidence(watermark: Watermark, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(values float64 [n, r], positions int64 [n], evidence int64 [n, E]) of one text int64 [n]."""
    scores = watermark.payload_scores(torch.from_numpy(ids))
    return scores.values.numpy(), scores.positions.numpy(), scores.evidence.numpy()


def read_payload(
    watermark: Watermark, values: np.ndarray, positions: np.ndarray, counted: np.ndarray
) -> PayloadReading:
    """The payload of one text; counted: bool [n]."""
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
    return PayloadReading(
        message=message,
        confidence=_confidence(code, totals, message, _weight(watermark, score, count)),
        values=own,
        score=score,
        count=count,
        z_score=float(null.z_scores[0]),
        p_value=min(1.0, float(null.p_values[0]) * 2.0**code.bits),
    )


def _totals(code: PayloadCode, sums: np.ndarray) -> list[np.ndarray]:
    """Score of every message of each block, float64 [2^bits of the block]; sums: float64 [P, r]."""
    totals, start = [], 0
    for block in code.blocks:
        own = sums[start : start + block.positions]
        totals.append(own[np.arange(block.positions), block.all_symbols].sum(axis=1))
        start += block.positions
    return totals


def _weight(watermark: Watermark, score: float, count: int) -> float:
    """Log-likelihood ratio of a unit of score, from how strongly this text is marked."""
    mean = score / max(count, 1)
    if isinstance(watermark, GreenList):
        fraction = watermark.green_fraction
        mean = min(max(mean, fraction), 1 - 0.5 / max(count, 1))
        return float(special.logit(mean) - special.logit(fraction))
    return max(0.0, 1 - 1 / max(mean, 1.0))


def _confidence(code: PayloadCode, totals: list[np.ndarray], message: int, weight: float) -> tuple[float, ...]:
    """Probability of each bit read, high bits first, over all messages of its block."""
    confidence: list[float] = []
    left = code.bits
    for block, scores in zip(code.blocks, totals, strict=True):
        left -= block.bits
        own = message >> left & ((1 << block.bits) - 1)
        bits = np.arange(block.bits - 1, -1, -1)
        agree = ((np.arange(1 << block.bits)[:, None] >> bits) & 1) == ((own >> bits) & 1)
        confidence += np.maximum(special.softmax(weight * scores) @ agree, 0.5).tolist()
    return tuple(confidence)
