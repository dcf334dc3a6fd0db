"""Winners of races over whole rows by the kernel against their reference."""

from __future__ import annotations

import pytest
import torch
from csrc.test_race_winner import KINDS, logits_of
from prf_inputs import KEYS, contexts, key_tensor

from caw.triton_kernels.race_winner_ref import race_winner_ref

CASES = list(zip([1, 3, 1023, 1025, 1027, 2050], KINDS, [0, 1, 5, 4, 2, 3], strict=True))


@pytest.mark.parametrize("vocab_size, kind, width", CASES)
def test_winners_equal_the_reference(device, vocab_size, kind, width):
    from caw.triton_kernels.race_winner import race_winner

    keys = key_tensor(KEYS, device)
    logits, context = logits_of(kind, len(keys), vocab_size).to(device), contexts(len(keys), width, device)
    assert torch.equal(race_winner(logits, context, keys), race_winner_ref(logits, context, keys))
    given = logits[:, ::2], context, keys, 0.7
    assert torch.equal(race_winner(*given), race_winner_ref(*given))


def test_rows_in_which_nobody_races(device):
    from caw.triton_kernels.race_winner import race_winner

    logits = torch.full((3, 1500), -torch.inf, device=device)
    logits[1] = torch.nan
    logits[2, 1300] = -40.0
    context, keys = contexts(3, 2, device), key_tensor(KEYS[:3], device)
    assert race_winner(logits, context, keys).tolist() == [0, 0, 1300]


def test_bad_arguments_are_refused_before_a_launch(device):
    from caw.triton_kernels.race_winner import race_winner

    logits, context, keys = torch.randn(2, 9, device=device), contexts(2, 1, device), key_tensor(KEYS[:2], device)
    with pytest.raises(TypeError, match="logits must be float32"):
        race_winner(logits.double(), context, keys)
    with pytest.raises(ValueError, match="1 to 2\\*\\*31 - 1 columns, got 0"):
        race_winner(logits[:, :0], context, keys)
    with pytest.raises(ValueError, match="temperature must be above 0"):
        race_winner(logits, context, keys, 0.0)
