"""Ladders of races whose values are known: the kernel against its reference, ties, masked tokens and short records."""

import pytest
import torch

from caw.triton_kernels.race_ladder import race_ladder
from caw.triton_kernels.race_ladder_ref import race_ladder_ref


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("k", [1, 7, 100, 128])
def test_equal_to_the_reference(device, k, scale):
    values = (torch.randn(5, k) * 3).round().sort(descending=True).values / 2  # ties
    race = values.double() + (torch.randn(5, k) * 4).round()
    values[1, k // 2 :], race[1, k // 2 :] = -torch.inf, -torch.inf
    race[2] = -torch.inf  # nobody races: the original token alone
    ids = torch.stack([torch.randperm(999)[:k] for _ in range(5)])
    full = 1.0 if scale else 20.0
    for greatest in (0.0, 0.35, 1.0, 1.7):
        found = race_ladder(*(x.to(device) for x in (values, ids, race)), full, greatest, scale)
        candidates, needs, counts = (x.cpu() for x in found)
        expected = race_ladder_ref(values, ids, race, full, greatest, scale)
        assert candidates.shape == expected[0].shape and needs.shape == expected[1].shape
        assert torch.equal(counts, expected[2]) and torch.equal(candidates, expected[0])
        assert torch.equal(needs, expected[1])
        assert counts[2] == 1 and (k < 7 or greatest == 0 or int(counts.max()) > 1)


def test_what_it_refuses(device):
    values, ids = torch.zeros(2, 5, device=device), torch.zeros(2, 5, dtype=torch.int64, device=device)
    with pytest.raises(TypeError, match="race"):
        race_ladder(values, ids, values, 1.0, 1.0, True)
    with pytest.raises(ValueError, match="values must have contiguous rows"):
        race_ladder(torch.zeros(5, 2, device=device).T, ids, values.double(), 1.0, 1.0, True)
