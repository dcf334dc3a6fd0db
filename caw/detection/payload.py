"""Which payload a text carries, how sure each bit is, and a p-value that allows for the choice among 2^b messages.

The score of a message is the sum of what counted tokens say under its symbols; the message with the greatest score is
read. For one message fixed in advance that sum has the exact null law of a plain watermark (binomial or gamma), so the
greatest of 2^b is at least x with probability of at most 2^b times the tail at x (Bonferroni): the p-value.

Up to 16 bits every message is tried. Beyond, the likeliest symbols are mended by the Reed-Solomon decoder with 0, 1, 2,
... of the least reliable bytes erased, and the best of the messages found is taken (generalised minimum distance
decoding, Forney 1966): not always the best of all, which can only make the p-value larger.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import special

from caw.detection.statistics import tails
from caw.watermarks import Watermark
from caw.watermarks.green_list import GreenList
from caw.watermarks.payload import ENUMERATED_BITS, PayloadCode


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
    message = _best_of_all(code, sums) if code.bits <= ENUMERATED_BITS else _mended(code, sums)
    symbols = code.symbols(message)
    own = values[np.arange(len(values)), symbols[positions]]
    score, count = float(own[counted].sum()), int(counted.sum())
    null = tails(watermark, np.array([score]), np.array([count]))
    return PayloadReading(
        message=message,
        confidence=_confidence(code, sums, message, _weight(watermark, score, count)),
        values=own,
        score=score,
        count=count,
        z_score=float(null.z_scores[0]),
        p_value=min(1.0, float(null.p_values[0]) * 2.0**code.bits),
    )


def _best_of_all(code: PayloadCode, sums: np.ndarray) -> int:
    """The message with the greatest score, ties to the smaller one."""
    return int(np.argmax(_scores_of_all(code, sums)))


def _scores_of_all(code: PayloadCode, sums: np.ndarray) -> np.ndarray:
    out: np.ndarray = sums[np.arange(code.positions), code.all_symbols()].sum(axis=1)
    return out


def _mended(code: PayloadCode, sums: np.ndarray) -> int:
    """The best message that the decoder finds; the bytes as they are read where it finds none."""
    ordered = np.sort(sums, axis=1)
    per_byte = 8 // code.symbol_bits
    reliability = (ordered[:, -1] - ordered[:, -2]).reshape(-1, per_byte).min(axis=1)
    word = _bytes_of(code, sums.argmax(axis=1))
    weakest = np.argsort(reliability, kind="stable").tolist()
    found = {code.decode_bytes(word, weakest[:erased]) for erased in range(code.parity_bytes + 1)}
    # no word at all within reach: whatever is read is then no evidence, but a message is needed to say so
    found.add(int.from_bytes(word[: code.data_bytes], "big") & ((1 << code.bits) - 1))
    messages = sorted(m for m in found if m is not None)
    rows = np.arange(code.positions)
    return max(messages, key=lambda m: float(sums[rows, code.symbols(m)].sum()))


def _bytes_of(code: PayloadCode, symbols: np.ndarray) -> bytes:
    shifts = np.arange(8 - code.symbol_bits, -1, -code.symbol_bits)
    return bytes((symbols.reshape(-1, len(shifts)) << shifts).sum(axis=1).astype(np.uint8).tolist())


def _weight(watermark: Watermark, score: float, count: int) -> float:
    """Log-likelihood ratio of a unit of score, from how strongly this text is marked."""
    mean = score / max(count, 1)
    if isinstance(watermark, GreenList):
        fraction = watermark.green_fraction
        mean = min(max(mean, fraction), 1 - 0.5 / max(count, 1))
        return float(special.logit(mean) - special.logit(fraction))
    return max(0.0, 1 - 1 / max(mean, 1.0))


def _confidence(code: PayloadCode, sums: np.ndarray, message: int, weight: float) -> tuple[float, ...]:
    """Probability of each bit read, high bits first: over all messages, or from the symbols that hold it."""
    bits = np.arange(code.bits - 1, -1, -1)
    if code.bits <= ENUMERATED_BITS:
        posterior = special.softmax(weight * _scores_of_all(code, sums))
        numbers = np.arange(1 << code.bits)
        agree = ((numbers[:, None] >> bits) & 1) == ((message >> bits) & 1)
        return tuple(np.maximum(posterior @ agree, 0.5).tolist())
    posterior = special.softmax(weight * sums, axis=1)
    place = code.data_bytes * 8 - 1 - bits  # from the word's high end
    position, shift = place // code.symbol_bits, code.symbol_bits - 1 - place % code.symbol_bits
    symbols = np.arange(code.r)
    agree = ((symbols[None] >> shift[:, None]) & 1) == ((message >> bits) & 1)[:, None]
    return tuple(np.maximum((posterior[position] * agree).sum(axis=1), 0.5).tolist())
