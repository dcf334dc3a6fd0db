"""Weights side by side in huge pages.

A decoding step on a CPU reads all weights once. In pages of 4 KB it looks up tens of thousands of addresses on the way,
and the processor does not prefetch from one page into the next. Linux gives pages of 2 MB to those who ask for them,
but most matrices are smaller than one or begin in its middle, so they are put one after another into areas that hold
many.
"""

from __future__ import annotations

import mmap

import torch

LINE, AREA, PAGE = 64, 1 << 26, 1 << 21  # bytes; what is not written of an area takes no memory


class HugePages:
    """Areas of memory that are filled from their beginning."""

    def __init__(self) -> None:
        self._area: mmap.mmap | None = None
        self._at = 0

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a dense CPU tensor in huge pages; itself where there are none (other systems, switched off).

        Each copy is a storage of its own, begins at a multiple of 64 bytes and keeps its area alive.
        """
        if not tensor.numel():
            return tensor
        if self._area is None or self._at + tensor.nbytes > len(self._area):
            self._area, self._at = _new_area(tensor.nbytes), 0
        if self._area is None:
            return tensor
        place = torch.frombuffer(self._area, dtype=tensor.dtype, count=tensor.numel(), offset=self._at)
        self._at += -(-tensor.nbytes // LINE) * LINE
        return place.view(tensor.shape).copy_(tensor)


def _new_area(least: int) -> mmap.mmap | None:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    area = mmap.mmap(-1, max(AREA, -(-least // PAGE) * PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        area.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without them
        return None
    return area
