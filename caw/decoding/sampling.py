"""Sampling as one perturbed argmax: warped logits plus one Gumbel draw per vocabulary entry.

The draws come from the sequence's own stream, a counter-based function of (seed, prompt, position, token), never
from the watermark's key and never from a global generator: a text does not depend on its batch or on its neighbours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from caw import ops
from caw.record import RECORD_SIZE, Record
from caw.triton_kernels.sampling_noise_ref import sampling_noise_ref
from caw.watermarks import keys

DOMAIN = b"caw/sample"


def noise_key(seed: int) -> int:
    """Return the 64-bit key of a seed's draws, as torch's int64."""
    return keys.signed(keys.derive_key(seed, DOMAIN))


@dataclass(frozen=True)
class GumbelNoise:
    """Draw standard Gumbel noise, by tensor operations alone.

    native: use the op where the device has a kernel: the same words, and floats that differ from the reference's only
    where two float64 logarithms disagree at a rounding boundary of float32 (about one in 10^8).
    """

    native: bool

    @classmethod
    def on(cls, device: torch.device, *, native: bool = True) -> GumbelNoise:
        return cls(native and ops.has_kernel("sampling_noise", device.type))

    def __call__(
        self, keys: torch.Tensor, streams: torch.Tensor, positions: torch.Tensor, vocab_size: int
    ) -> torch.Tensor:
        """Draws float32 [B, V] for position `positions` (int64 [B]) of streams int64 [B, 2] under keys int64 [B]."""
        context = self.context(streams, positions)
        return (ops.sampling_noise if self.native else sampling_noise_ref)(context, keys, vocab_size)

    def perturb(
        self, logits: torch.Tensor, rows: torch.Tensor, keys: torch.Tensor, streams: torch.Tensor,
        positions: torch.Tensor, reach: float,
    ) -> tuple[torch.Tensor, Record | None]:  # fmt: skip
        """Add the draws of these rows (bool [B]) to logits [B, V], and return the scores and their record, None if it
        was not made on the way. Reads back which rows draw where the op does not do all of it.

        reach: how far below the greatest score they are read (`Watermark.reads_below`); beyond, they may be -inf.
        """
        if self.native and ops.has_kernel("draw_scores", logits.device.type):
            context = self.context(streams, positions)
            scores, values, ids = ops.draw_scores(logits, rows, context, keys, RECORD_SIZE, reach)
            return scores, Record(values, ids, values.softmax(dim=1), values.logsumexp(dim=1))
        some = rows.nonzero()[:, 0]
        draws = self(keys[some], streams[some], positions[some], logits.shape[1])
        return logits.index_add(0, some, draws), None

    @staticmethod
    def context(streams: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """What the draws of a position depend on besides the key, int64 [B, 3]."""
        return torch.cat([streams, positions[:, None]], dim=1)


def stream_id(prompt: Sequence[int], occurrence: int) -> tuple[int, int]:
    """Return the stream of a prompt: two 32-bit words from a hash of its ids and of how often it occurred before."""
    digest = hashlib.sha256(repr((occurrence, tuple(prompt))).encode()).digest()
    return int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")
