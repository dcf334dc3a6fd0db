"""Block sizes by shape, fixed before any capture: no autotuning while a text is made.

UNTUNED: start values from compiler reports (registers, shared memory, asynchronous copies), not from a clock. One H100
has timed them (docs/results/gpu.md), but none was changed for it. Tiles of products can be timed on a device before
(`tuned`), those of PRODUCT_TRIALS.
"""

from dataclasses import dataclass

import torch

from caw.triton_kernels.launching import SM_COUNT, cdiv, next_power_of_2
from caw.triton_kernels.packed_weights_ref import INT4, Format

MAX_SPLITS = 64
TILE_BYTES = 96 << 10  # under way of one product's program: newer cards hold two of them, older ones of 99 KiB one
CTAS_PER_SM = 2
MIN_BLOCKS_PER_SPLIT = 2  # a split shorter than this pays more for its partial result than it saves


@dataclass(frozen=True)
class AttentionBlocks:
    """Tile of one program: block_m query rows, block_n prefix positions, block_d >= D.

    can_finish: whether, with one part, the first kernel may also merge the own token and write the output; own keys and
    values beside a large accumulator spill registers.
    """

    block_m: int
    block_n: int
    block_d: int
    num_warps: int
    num_stages: int
    can_finish: bool


def attention_blocks(rows: int, dim: int, dtype: torch.dtype) -> AttentionBlocks:
    """Blocks for `rows` = C * H / HK query rows per KV head; more than 64 rows take several M blocks."""
    block_d = max(next_power_of_2(dim), 16)
    if dtype == torch.float32:
        # exact float32 products run on the plain units from registers: a small tile, and above 64 dimensions twice the
        # warps, keep them from spilling (with four warps a tile of 16 positions does so where pages are looked up)
        return AttentionBlocks(16, 32, block_d, 4 if block_d <= 64 else 8, 2, can_finish=block_d <= 128)
    block_m = min(max(next_power_of_2(rows), 16), 64)
    # with four warps tiles of 32 and 64 rows sit at the edge of spilling (64 beyond it on compute capabilities 8.0 and
    # 10.0); twice the warps halve the registers of each
    wide = (block_d == 128 and block_m >= 32) or block_m * block_d == 64 * 256
    num_warps, num_stages = 8 if wide else 4, 3 if block_d <= 128 else 2
    return AttentionBlocks(block_m, 64 if block_d <= 128 else 32, block_d, num_warps, num_stages, block_d <= 128)


def num_splits(batch: int, kv_heads: int, m_blocks: int, size: int, block_n: int) -> int:
    """Into how many parts the prefix is cut; from shapes only, so a captured graph keeps it.

    As in FlashAttention's heuristic: the smallest count whose last wave of programs is at least 85 % as full as the
    best one's.
    """
    programs, slots = batch * kv_heads * m_blocks, SM_COUNT * CTAS_PER_SM
    limit = max(1, min(MAX_SPLITS, cdiv(size, block_n * MIN_BLOCKS_PER_SPLIT), cdiv(slots, max(programs, 1))))
    fill = [programs * s / (cdiv(programs * s, slots) * slots) for s in range(1, limit + 1)]
    return next(s for s, f in enumerate(fill, start=1) if f >= 0.85 * max(fill))


@dataclass(frozen=True)
class TopKBlocks:
    """Elements per program of the first kernel, and warps of both."""

    block_v: int
    part_warps: int
    merge_warps: int


def topk_blocks(vocab_size: int) -> TopKBlocks:
    """4096 logits a program: enough programs for few rows, and K of each are few enough to merge in one program."""
    if vocab_size <= 1024:
        return TopKBlocks(max(next_power_of_2(vocab_size), 128), 4, 4)
    # merge reads up to cdiv(V, block) * K candidates in registers: above 160k tokens 4096 a block would spill it
    return TopKBlocks(4096, 8, 8) if vocab_size <= 160_000 else TopKBlocks(8192, 16, 8)


@dataclass(frozen=True)
class ProductBlocks:
    """Tile of one program of a product: block_o outputs, block_k inputs at a time, num_stages tiles under way.

    A warp takes at least 8 columns of 16 rows: more warps than that repeat each other's work, which is found in the
    machine code (benchmarks/aot_configurations.py). Columns are outputs, where gated twice as many.
    """

    block_o: int
    block_k: int
    num_warps: int
    num_stages: int


def product_blocks(
    outputs: int, size: int, dtype: torch.dtype, gated: bool, form: Format | None = None
) -> ProductBlocks:
    """For weights [outputs, size], two of them where gated; the number of rows has no part in it.

    dtype: of the inputs. form: of packed weights; None = dense ones of that dtype.

    Memory is busy while some 40 KiB are under way to each multiprocessor (4.8 TB/s times 1 us over 132). The outputs of
    a program are those with which the last wave of programs is fullest, more rather than fewer: each reads all of x.
    """
    fill = {block: outputs / (cdiv(outputs, block * SM_COUNT) * block * SM_COUNT) for block in (64, 32, 16)}
    block_o = next(block for block, full in fill.items() if full >= 0.95 * max(fill.values()))
    if form is not None:
        return _packed_blocks(block_o, size, dtype, gated, form)
    if dtype == torch.float32:
        # exact float32 products run on the plain units, from registers
        return ProductBlocks(min(block_o, 32), 32, 4, 4)
    # 8 KiB of weights a tile, six of them under way to each of the one or two programs of a multiprocessor
    block_o = min(block_o, 32) if gated else block_o
    block_k = 64 if gated or block_o == 64 else 128
    return ProductBlocks(block_o, min(block_k, max(next_power_of_2(size), 16)), 4 if gated else min(block_o // 8, 4), 7)


def _packed_blocks(block_o: int, size: int, dtype: torch.dtype, gated: bool, form: Format) -> ProductBlocks:
    """4 KiB of weights a tile; a tile's numbers stand in registers before they are multiplied."""
    if dtype == torch.float32:
        return ProductBlocks(16, 64, 8, 3)  # with four warps tiles of 32 rows spill
    block_k = min(256 if form is INT4 else 128, max(next_power_of_2(size), 64))
    block_o = 32 if form is INT4 and not gated else min(block_o, 32)
    return ProductBlocks(block_o, block_k, 4 if gated else block_o // 8, 6)


# ProductBlocks worth a trial, by the first figure of the compute capability: 8 has less shared memory and fewer bytes
# to keep under way; newer ones take the last. All compile without spills (benchmarks/aot_configurations.py)
PRODUCT_TRIALS: dict[int, dict[str, tuple[tuple[int, int, int, int], ...]]] = {
    8: {
        "half": ((16, 128, 2, 5), (32, 64, 4, 6), (32, 128, 4, 4), (64, 64, 4, 5), (64, 64, 8, 4), (64, 128, 4, 3)),
        "gated": ((16, 64, 4, 6), (16, 128, 4, 3), (32, 64, 4, 4), (32, 64, 8, 4)),
        "float32": ((16, 32, 4, 4), (16, 64, 4, 3), (32, 32, 4, 3)),
        "packed": ((16, 128, 2, 5), (32, 128, 4, 5), (64, 128, 8, 4)),
        "packed gated": ((16, 128, 4, 4), (16, 128, 4, 6)),
        "packed float32": ((16, 64, 8, 3),),
    },
    9: {
        "half": ((16, 128, 2, 7), (32, 128, 4, 5), (32, 128, 4, 7), (32, 256, 4, 4), (64, 64, 4, 7),
                 (64, 128, 8, 4), (128, 64, 8, 5)),
        "gated": ((16, 64, 4, 7), (16, 128, 4, 5), (32, 64, 4, 5), (32, 64, 8, 7), (32, 128, 8, 4)),
        "float32": ((16, 32, 4, 4), (16, 64, 4, 3), (32, 32, 4, 3), (32, 64, 4, 2)),
        "packed": ((16, 128, 2, 6), (32, 128, 4, 6), (32, 256, 4, 4), (64, 128, 8, 5)),
        "packed gated": ((16, 128, 4, 6), (16, 256, 4, 4), (32, 128, 4, 4)),
        "packed float32": ((16, 64, 8, 3),),
    },
}  # fmt: skip


def product_trials(
    size: int, dtype: torch.dtype, gated: bool, capability: int, form: Format | None = None
) -> list[ProductBlocks]:
    """Tiles that a tuner tries for weights of `size` inputs, none much wider than they are.

    capability: the first figure of the device's compute capability. form: of packed weights.
    """
    kind = "float32" if dtype == torch.float32 else "gated" if gated else "half"
    if form is not None:
        kind = f"packed {kind}".removesuffix(" half")
    found = [ProductBlocks(*sizes) for sizes in PRODUCT_TRIALS[min(max(capability, 8), max(PRODUCT_TRIALS))][kind]]
    least = 32 if form is INT4 and not gated else 16  # outputs: see product_rows
    return [blocks for blocks in found if blocks.block_k < 2 * max(size, 16) and blocks.block_o >= least]


def product_rows(rows: int, columns: int, block_k: int, dtype: torch.dtype) -> tuple[int, int]:
    """Rows of one block of a product's tile, and blocks of one program; the order of its sums is always the same.

    Each block is a product of its own with the same weights, which are read and made numbers once for all of them.
    Warps lie along the longer side of such tiles: they stay wider than high. float32 keeps its sums in registers; so
    many inputs at a time that four blocks spill are taken by two.
    """
    if columns <= 16 or dtype == torch.float32:
        return (16 if rows <= 16 else 32), 1
    return 16, 1 if rows <= 16 else 2 if rows <= 32 or block_k >= 256 else 4


def product_stages(blocks: ProductBlocks, rows: int, columns: int, dtype: torch.dtype, form: Format | None) -> int:
    """Tiles under way that fit: those of many rows are mostly inputs."""
    weight = dtype.itemsize if form is None else 1 / form.per_byte
    tile = blocks.block_k * (rows * dtype.itemsize + columns * weight)
    return min(blocks.num_stages, max(int(TILE_BYTES // tile), 1) + 1)
