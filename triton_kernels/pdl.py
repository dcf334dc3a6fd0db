"""Programmatic dependent launch: kernels that start while the one before still runs, where `launching.uses_pdl`.

A kernel first prefetches what nobody writes during a step, weights, and then calls `pdl_sync`: the next kernel may
start, and this one waits until the one before has ended and its memory can be read. Nothing else is read or written
before. Every one of these kernels waits, so whoever has waited knows that all before have ended; behind a kernel of
somebody else, which lets nothing start early, the wait is over at once.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LINE = tl.constexpr(128)  # bytes that a second-level cache fetches at a time


@triton.jit
def pdl_sync(USE_PDL: tl.constexpr):
    """Let the next kernel start, then wait until the one before has ended and its memory can be read."""
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def prefetch(places):
    """Fetch the lines of these pointers into the second-level cache, without waiting for them."""
    asm: tl.constexpr = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"
    tl.inline_asm_elementwise(asm, "=r,l", [places.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def prefetch_floats(ptr, count, BLOCK: tl.constexpr):
    """`prefetch` all of `count` float32 that lie in one piece, BLOCK lines at a time."""
    for start in range(0, count, BLOCK * (LINE // 4)):
        prefetch(ptr + tl.minimum(start + tl.arange(0, BLOCK) * (LINE // 4), count - 1))
