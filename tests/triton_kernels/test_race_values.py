"""Race values by the kernel against their reference, and the words behind them against `prf`."""

from __future__ import annotations

import pytest
import torch
from prf_inputs import KEYS, WIDTHS, contexts, key_tensor, mixed_keys

from caw import prf
from caw.testing import assert_close
from caw.triton_kernels.race_values_ref import race_values_ref
from caw.watermarks import EXP


@pytest.mark.parametrize("key, width", zip(KEYS, WIDTHS, strict=True))
def test_words_are_equal(device, key, width):
    """With logits 0 the race value is a function of the word's upper 24 bits alone, and it tells all of them apart."""
    from caw.triton_kernels.race_values import race_values

    zeros, context = torch.zeros(2, 100, device=device), contexts(2, width, device)
    ids = torch.randint(0, 2**31 - 1, (2, 100), device=device)
    keys = mixed_keys(key, 2)
    race = race_values(zeros, ids, zeros, context, key_tensor(keys, device)).cpu()
    words = torch.stack([prf.context_words(k, context[b].cpu(), ids[b].cpu()) for b, k in enumerate(keys)])
    assert_close(race, prf.gumbel(words), "margin/race")
    back = (torch.exp(-torch.exp(-race)) * (2**24 + 1)).round().long() - 1
    assert (back - (words >> 8)).abs().max() <= 1  # uniforms are float32: neighbours above 0.5 are half a step apart


@pytest.mark.parametrize("k", [1, 7, 100, 128])
def test_race_values_equal_the_reference(device, k):
    from caw.triton_kernels.race_values import race_values

    values = torch.randn(3, k).sort(descending=True).values.to(device)
    values[1, k // 2 :] = -torch.inf
    ids = torch.randint(0, 100_000, (3, k), device=device)
    keys = key_tensor(mixed_keys(KEYS[4], 3), device)
    arguments = (values, ids, values + 1, contexts(3, EXP(key=1).window, device), keys)
    actual, expected = race_values(*arguments), race_values_ref(*(x.cpu() for x in arguments))
    assert actual.dtype == torch.float64
    assert_close(actual, expected, "margin/race")
