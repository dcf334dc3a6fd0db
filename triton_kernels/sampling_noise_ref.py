"""Reference of `sampling_noise`: -log(-log((word + 1/2) / 2^32)) for every token of a vocabulary."""

import torch

from caw import prf


def sampling_noise_ref(context: torch.Tensor, key: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Standard Gumbel draws float32 [B, V], worked out in float64, by context int64 [B, W] and key int64 [B]."""
    words = prf.vocabulary_words(key[:, None], context, vocab_size)
    # all 32 bits: 24 would cap the noise at 16.6, within reach of a 100k vocabulary
    u = (words.double() + 0.5) / 4294967296.0
    return -torch.log(-torch.log(u)).float()
