"""Weights side by side in huge pages: the same numbers at another place."""

import mmap

import pytest
import torch

from caw import ops
from caw.models import huge_pages
from caw.models.huge_pages import AREA, LINE, HugePages

needs_pages = pytest.mark.skipif(huge_pages._new_area(1) is None, reason="needs Linux with huge pages")


@needs_pages
def test_tensors_lie_one_after_another_and_keep_their_area() -> None:
    pages = HugePages()
    first, second, third = (pages.empty(count).fill_(count) for count in (100, 7, 64))
    assert [t.data_ptr() - first.data_ptr() for t in (second, third)] == [2 * LINE, 3 * LINE]
    assert second.untyped_storage().nbytes() == 7
    second.zero_()
    great = pages.empty(AREA - LINE)  # does not fit, so it begins a new area
    fifth = pages.empty(LINE).fill_(5)
    assert fifth.data_ptr() - great.data_ptr() == AREA - LINE
    del pages, great
    assert fifth.tolist() == [5] * LINE and third.tolist() == [64] * 64 and first.tolist() == [100] * 100


@pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")
@pytest.mark.parametrize("fast", [False, True])
def test_blocks_are_packed_where_they_stay(fast: bool) -> None:
    pages = HugePages()
    blocks = torch.randint(0, 256, (37, 3 * 22)).to(torch.uint8)
    for _ in range(2):
        pages.empty(1000).fill_(0xFF)  # what lay there before must not show
        assert torch.equal(pages.pack(blocks, 6, fast), ops.pack_blocks(blocks, 6, fast))


def test_systems_without_huge_pages_use_torchs_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert HugePages().empty(0).shape == (0,)

    class Refusing(mmap.mmap):
        def madvise(self, *args: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(huge_pages.mmap, "mmap", Refusing)
    assert HugePages().empty(3).fill_(1).tolist() == [1, 1, 1]
    monkeypatch.delattr(huge_pages.mmap, "MADV_HUGEPAGE", raising=False)
    assert HugePages().empty(3).fill_(2).tolist() == [2, 2, 2]
