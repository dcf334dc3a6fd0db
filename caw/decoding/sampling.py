"""Sampling as one perturbed argmax: warped logits plus one Gumbel draw per vocabulary entry.

The draws come from the sequence's own stream, a counter-based function of (seed, prompt, position, token), never
from the watermark's key and never from a global generator: a text does not depend on its batch or on its neighbours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from caw import ops
from caw.decoding.state import DecodeState
from caw.settings import Settings
from caw.triton_kernels.sampling_noise_ref import sampling_noise_ref
from caw.watermarks import keys

DOMAIN = b"caw/sample"
# takes plain logits float32 [B, V] and what is known of the sequences, returns warped ones; -inf = excluded
Warper = Callable[[torch.Tensor, DecodeState], torch.Tensor]


@dataclass(frozen=True)
class Warping:
    """transformers' warpers in a row; tensor operations of fixed shapes alone."""

    processors: LogitsProcessorList

    def __call__(self, logits: torch.Tensor, state: DecodeState | None = None) -> torch.Tensor:
        ids = torch.empty(logits.shape[0], 0, dtype=torch.int64, device=logits.device)
        for processor in self.processors:
            logits = processor(ids, logits)
        return logits


def make_warper(settings: Settings) -> Warping | None:
    """Temperature, top-k, top-p in transformers' order; None if they change nothing or decoding is greedy."""
    if not settings.do_sample:
        return None
    processors = LogitsProcessorList()
    if settings.temperature != 1.0:
        processors.append(TemperatureLogitsWarper(float(settings.temperature)))
    if settings.top_k > 0:
        processors.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1.0:
        processors.append(TopPLogitsWarper(settings.top_p))
    if not processors:
        return None
    return Warping(processors)


@dataclass(frozen=True)
class GumbelNoise:
    """Standard Gumbel draws of one seed; the key is worked out once, so that a call is tensor operations alone.

    native: use the op where the device has a kernel: the same words, and floats that differ from the reference's only
    where two float64 logarithms disagree at a rounding boundary of float32 (about one in 10^8).
    """

    key: int = field(repr=False)
    native: bool

    @classmethod
    def of(cls, seed: int, device: torch.device, *, native: bool = True) -> GumbelNoise:
        return cls(keys.derive_key(seed, DOMAIN), native and ops.has_kernel("sampling_noise", device.type))

    def __call__(self, streams: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """Draws float32 [B, V] for position `positions` (int64 [B]) of streams int64 [B, 2]."""
        context = torch.cat([streams, positions[:, None]], dim=1)
        draw = ops.sampling_noise if self.native else sampling_noise_ref
        return draw(context, self.key - (self.key >> 63 << 64), vocab_size)  # ops take signed integers


def stream_ids(prompts: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """One stream per prompt: two 32-bit words from a hash of its ids and of how often it occurred before.

    Independent of the order of different prompts; the same prompt given twice gets two streams.
    """
    seen: dict[tuple[int, ...], int] = {}
    streams = []
    for prompt in prompts:
        ids = tuple(prompt)
        occurrence = seen.get(ids, 0)
        seen[ids] = occurrence + 1
        digest = hashlib.sha256(repr((occurrence, ids)).encode()).digest()
        streams.append((int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")))
    return streams
