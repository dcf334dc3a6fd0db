"""Score the tokens of many texts at once, and select those that count as evidence.

Texts pass through the watermark as one stream, separated by `window` missing tokens (-1). Repeated evidence does not
count: EXP counts each context, KGW each (context, token) or (seed, token), Unigram each distinct token once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from caw.arrays import torch
from caw.detection.evidence import first_occurrences
from caw.detection.family import tests_of
from caw.watermarks import Watermark
from caw.watermarks.base import MISSING

Mode = Literal["exact", "compat"]
STREAM_TOKENS = 1 << 18  # tokens scored in one go; bounds memory to some tens of MB


@dataclass(frozen=True)
class Scored:
    """The tokens of one text: ids int64 [n], values float64 [n] (green or -log(1 - u)), counted bool [n]."""

    ids: np.ndarray
    values: np.ndarray
    counted: np.ndarray


def score_texts(
    watermark: Watermark, texts: Sequence[np.ndarray], mode: Mode
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (values float64, counted bool, repeated bool, owner int64), all [N], of all texts' tokens in order."""
    owner = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    values, evidence, eligible = score_stream(watermark, texts, mode)
    counted = eligible if evidence is None else eligible & first_occurrences(owner, evidence, eligible)
    return values, counted, eligible & ~counted, owner


def score_stream(
    watermark: Watermark, texts: Sequence[np.ndarray], mode: Mode
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Return (values float64 [N], evidence int64 [N, E] or None, counted bool [N]) of all texts' tokens, in order."""
    if watermark.code is not None:
        raise ValueError(
            "regions, weights and null reports do not support payloads, got a watermark with payload_bits; leave the "
            "payload out"
        )
    if watermark.family > 1:
        raise ValueError(
            f"tokens are scored under one key, got {tests_of(watermark)} of {watermark.name}; give one of them, "
            "watermark.under_subkey(number)"
        )
    gap = np.full(watermark.window, MISSING, dtype=np.int64)
    stream = np.concatenate([part for text in texts for part in (gap, text)])
    real = stream != MISSING
    watermark.check_ids(int(stream.max(initial=MISSING)))
    scores = watermark.score_tokens(stream if watermark.scores_arrays else torch.from_numpy(stream))
    evidence, counted = scores.compat_evidence, scores.scored
    if mode == "exact":
        evidence = scores.evidence
        counted = counted if scores.keyless is None else counted & ~scores.keyless
    once = None if evidence is None else np.asarray(evidence)[real]
    return np.asarray(scores.values)[real], once, np.asarray(counted)[real]


def chunks(texts: Sequence[np.ndarray]) -> Iterator[Sequence[np.ndarray]]:
    """Yield runs of consecutive texts with fewer than STREAM_TOKENS tokens together (a longer text comes alone)."""
    start, tokens = 0, 0
    for i, text in enumerate(texts):
        if i > start and tokens + len(text) > STREAM_TOKENS:
            yield texts[start:i]
            start, tokens = i, 0
        tokens += len(text)
    if start < len(texts):
        yield texts[start:]
