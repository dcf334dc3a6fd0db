"""Sampling as one perturbed argmax: warped logits plus one Gumbel draw per vocabulary entry.

The draws come from the sequence's own stream, a counter-based function of (seed, prompt, position, token), never
from the watermark's key and never from a global generator: a text does not depend on its batch or on its neighbours.
"""

import hashlib
from collections.abc import Sequence

import torch

from caw import ops
from caw.record import RECORD_SIZE, Record
from caw.triton_kernels.sampling_noise_ref import sampling_noise_ref
from caw.watermarks import keys

DOMAIN = b"caw/sample"


def noise_key(seed: int) -> int:
    """Return the 64-bit key of a seed's draws, as torch's int64."""
    return keys.signed(keys.derive_key(seed, DOMAIN))


def native_noise(device: torch.device, *, native: bool = True) -> bool:
    """Tell whether to draw by the op, where the device has a kernel: the same words, and floats that differ from the
    reference's only where two float64 logarithms disagree at a rounding boundary of float32 (about one in 10^8).
    """
    return native and ops.has_kernel("sampling_noise", device.type)


def draws(keys: torch.Tensor, context: torch.Tensor, vocab_size: int, *, native: bool) -> torch.Tensor:
    """Standard Gumbel noise float32 [B, V] by key int64 [B] and context int64 [B, 3]: the stream and the position."""
    return (ops.sampling_noise if native else sampling_noise_ref)(context, keys, vocab_size)


def perturb(
    logits: torch.Tensor, rows: torch.Tensor, keys: torch.Tensor, context: torch.Tensor, reach: float, *, native: bool
) -> tuple[torch.Tensor, Record | None]:
    """Add the draws of these rows (bool [B]) to logits [B, V], and return the scores and their record, None if it was
    not made on the way. Reads back which rows draw where the op does not do all of it.

    reach: how far below the greatest score they are read (`Watermark.reads_below`); beyond, they may be -inf.
    """
    if native and ops.has_kernel("draw_scores", logits.device.type):
        scores, values, ids = ops.draw_scores(logits, rows, context, keys, RECORD_SIZE, reach)
        return scores, Record(values, ids, values.softmax(dim=1), values.logsumexp(dim=1))
    some = rows.nonzero()[:, 0]
    return logits.index_add(0, some, draws(keys[some], context[some], logits.shape[1], native=native)), None


def stream_id(prompt: Sequence[int], occurrence: int) -> tuple[int, int]:
    """Return the stream of a prompt: two 32-bit words from a hash of its ids and of how often it occurred before."""
    digest = hashlib.sha256(repr((occurrence, tuple(prompt))).encode()).digest()
    return int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")
