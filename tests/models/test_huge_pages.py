"""Weights side by side in huge pages: the same numbers at another place."""

from __future__ import annotations

import mmap

import pytest
import torch

from caw.models import huge_pages
from caw.models.huge_pages import AREA, LINE, HugePages

needs_pages = pytest.mark.skipif(huge_pages._new_area(1) is None, reason="needs Linux with huge pages")


@needs_pages
def test_tensors_lie_one_after_another_and_hold_their_numbers() -> None:
    pages = HugePages()
    given = [torch.arange(n, dtype=kind) for n, kind in ((100, torch.uint8), (7, torch.float32), (64, torch.bfloat16))]
    placed = [pages.place(tensor.view(1, -1)) for tensor in given]
    for before, after in zip(given, placed, strict=True):
        assert after.dtype == before.dtype and torch.equal(after, before.view(1, -1))
        assert after.data_ptr() != before.data_ptr() and after.untyped_storage().nbytes() == before.nbytes
    first = placed[0].data_ptr()
    assert [p.data_ptr() - first for p in placed] == [0, 2 * LINE, 3 * LINE]
    placed[1].zero_()
    assert torch.equal(placed[2], given[2].view(1, -1))


@needs_pages
def test_a_tensor_that_does_not_fit_begins_a_new_area() -> None:
    pages = HugePages()
    small = pages.place(torch.ones(100, dtype=torch.uint8))
    great = pages.place(torch.empty(AREA, dtype=torch.uint8)[: AREA - LINE])
    third = pages.place(torch.full((LINE,), 3, dtype=torch.uint8))
    assert third.data_ptr() - great.data_ptr() == AREA - LINE
    assert bool((small == 1).all()) and bool((third == 3).all())
    del pages, great
    assert third.tolist() == [3] * LINE, "a tensor keeps its area"


def test_systems_without_huge_pages_keep_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, nothing = torch.ones(3), torch.empty(0, 4)
    assert HugePages().place(nothing) is nothing

    class Refusing(mmap.mmap):
        def madvise(self, *args: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(huge_pages.mmap, "mmap", Refusing)
    assert HugePages().place(tensor) is tensor
    monkeypatch.delattr(huge_pages.mmap, "MADV_HUGEPAGE", raising=False)
    assert HugePages().place(tensor) is tensor
