"""The noise that makes an argmax a sample."""

import math

import numpy as np
import torch

from caw import prf
from caw.decoding.sampling import DOMAIN, draws, native_noise, noise_key
from caw.watermarks import keys

VOCAB = 53
CPU = torch.device("cpu")


def gumbel_noise(seed: int, streams: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    context, keys_ = torch.cat([streams, positions[:, None]], dim=1), torch.full_like(positions, noise_key(seed))
    return draws(keys_, context, vocab_size, native=native_noise(CPU))


def test_noise_is_a_function_of_seed_stream_position_and_token() -> None:
    """Word by word in plain integers: PRF under the key derived for the sampler, never the watermark's."""
    streams, positions = torch.tensor([[1, 2], [3, 2**32 - 1]]), torch.tensor([0, 5])
    noise = gumbel_noise(7, streams, positions, VOCAB)
    key = keys.derive_key(7, DOMAIN)
    for row, context in enumerate([[1, 2, 0], [3, 2**32 - 1, 5]]):
        for token in range(VOCAB):
            word = prf.token_word(key, prf.absorb_context(key, context), token)
            expected = np.float32(-math.log(-math.log((word + 0.5) / 2**32)))
            assert abs(noise[row, token].item() - expected) <= abs(np.spacing(expected))
    assert noise.dtype == torch.float32
