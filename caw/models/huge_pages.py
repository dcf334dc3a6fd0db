"""Weights placed consecutively in huge pages.

A decoding step on a CPU reads all weights once. With 4 KB pages it looks up tens of thousands of addresses, and the
processor does not prefetch across pages. Linux provides 2 MB pages on request, but most matrices are smaller than one
or start in the middle of one, so they are placed one after another in areas that hold many.
"""

import ctypes
import mmap
import sys

import torch

from caw import ops
from caw.ops_ref.block_types import packed_bytes

LINE, AREA, PAGE = 64, 1 << 26, 1 << 21  # bytes; what is not written of an area takes no memory


class HugePages:
    """Memory areas that are filled from the start."""

    def __init__(self) -> None:
        self._area: mmap.mmap | None = None
        self._at = 0

    def pack(self, blocks: torch.Tensor, kind: int, fast: bool = False) -> torch.Tensor:
        """Run `ops.pack_blocks` on uint8 [outputs, bytes per row] of ggml's type `kind`, written to its final place."""
        out = self.empty(packed_bytes(blocks.shape[0], blocks.shape[1], kind))
        ops.pack_blocks_into(blocks, kind, fast, out)
        return out

    def copy(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return a copy of numbers in their own dtype."""
        return self.empty(numbers.nbytes).view(numbers.dtype).view(numbers.shape).copy_(numbers)

    def empty(self, count: int) -> torch.Tensor:
        """Return uint8 [count] in huge pages, or in torch's memory if there are none (other systems, switched off).

        Each is a storage of its own, begins at a multiple of 64 bytes and keeps its area alive.
        """
        if self._area is None or self._at + count > len(self._area):
            self._area, self._at = _new_area(count), 0
        if self._area is None or not count:
            return torch.empty(count, dtype=torch.uint8)
        place = torch.frombuffer(self._area, dtype=torch.uint8, count=count, offset=self._at)
        self._at += -(-count // LINE) * LINE
        return place


def mapped(count: int) -> mmap.mmap | None:
    """Return zeros that take memory only where something is written, None on systems without `mmap`'s flags."""
    return mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) if hasattr(mmap, "MAP_PRIVATE") else None


def _new_area(least: int) -> mmap.mmap | None:
    area = mapped(max(AREA, -(-least // PAGE) * PAGE)) if hasattr(mmap, "MADV_HUGEPAGE") else None
    try:
        if area is not None:
            area.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without them
        return None
    return area


def forget(read: torch.Tensor) -> None:
    """Let Linux reclaim a tensor's whole pages that are read no more: a mapped file's would stay to its last tensor."""
    begin = -(-read.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    count = (read.data_ptr() + read.nbytes - begin) // mmap.PAGESIZE * mmap.PAGESIZE
    if sys.platform == "linux" and count > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(count), mmap.MADV_DONTNEED)
