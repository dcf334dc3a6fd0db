"""Gumbel draws by the kernel against their reference."""

from __future__ import annotations

import pytest
import torch

from caw.testing import assert_close
from caw.triton_kernels.sampling_noise_ref import sampling_noise_ref


@pytest.mark.parametrize("key, vocab_size", [(0, 1), (2**62 + 77, 7), (-1, 1023), (3, 2050)])
def test_draws_equal_the_reference(device, key, vocab_size):
    from caw.triton_kernels.sampling_noise import sampling_noise

    streams, positions = torch.randint(0, 2**32, (3, 2)), torch.tensor([0, 5, 2**40])
    context = torch.cat([streams, positions[:, None]], dim=1)
    keys = torch.tensor([key, 5, ~key])
    draws = sampling_noise(context.to(device), keys.to(device), vocab_size)
    assert_close(draws, sampling_noise_ref(context, keys, vocab_size), "float32")
    alone = [sampling_noise_ref(context[b : b + 1], keys[b : b + 1], vocab_size) for b in range(3)]
    assert torch.equal(sampling_noise_ref(context, keys, vocab_size), torch.cat(alone))
