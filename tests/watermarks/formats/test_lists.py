"""Membership in drawn lists: against torch.randperm, kept or not, and by the road that a GPU takes."""

import pytest
import torch

from caw import ops
from caw.watermarks.formats import lists
from caw.watermarks.formats.lists import PermutationLists

V, SIZE = 75, 20
SEEDS = torch.tensor([3, 2**40 + 3, -1, 3, 2**63 - 1])  # the second counts as the first: low 32 bits
WAYS = ["kept", "not kept", "on the device"]


def truth(seeds: torch.Tensor, width: int) -> torch.Tensor:
    found = torch.zeros(len(seeds), width, dtype=torch.bool)
    for row, seed in enumerate(seeds.tolist()):
        generator = torch.Generator().manual_seed(seed % 2**32)
        found[row, torch.randperm(V, generator=generator)[:SIZE]] = True
    return found


@pytest.fixture(params=WAYS)
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PermutationLists:
    if request.param == "on the device":
        if not ops.has_kernel("permutation_contains", "cpu"):
            pytest.skip("needs the compiled extension, whose CPU operators stand for those of a GPU")
        monkeypatch.setattr(lists, "draws_on_device", lambda seeds: True)
    return PermutationLists(V, SIZE, keep=request.param == "kept")


def test_contains(made: PermutationLists) -> None:
    tokens = torch.arange(V + 3).repeat(len(SEEDS), 1)
    seeds = SEEDS[:, None].expand_as(tokens)
    for _ in range(2):  # the second time from what was kept
        assert torch.equal(made.contains(seeds, tokens), truth(SEEDS, V + 3))


@pytest.mark.parametrize("width", [V, V - 5, V + 40])
def test_masks(made: PermutationLists, width: int) -> None:
    assert torch.equal(made.masks(SEEDS, width), truth(SEEDS, max(V, width))[:, :width])


def test_a_cpu_draws_on_the_host() -> None:
    assert not lists.draws_on_device(SEEDS)
