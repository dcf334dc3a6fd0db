"""Who makes a product of few rows in `bench_kernels.py`: this library by the tiles that the shapes choose, torch, and
this library by other tiles, which is what the choice of tiles will be made from."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import torch
from caw.triton_kernels import small_linear
from caw.triton_kernels.block_sizes import ProductBlocks

from caw import ops

TILES = (ProductBlocks(16, 128, 4, 7), ProductBlocks(32, 256, 4, 4), ProductBlocks(64, 64, 4, 7),
         ProductBlocks(64, 128, 8, 4))  # fmt: skip


def product_sides(x: torch.Tensor, data: list[torch.Tensor], smoke: bool) -> dict[str, Callable[[int], torch.Tensor]]:
    """x [M, K] times copy i % len(data) of the weight [O, K] transposed -> [M, O]; smoke: without other tiles."""
    sides = {
        "caw": lambda i: ops.small_linear(x, data[i % len(data)]),
        "torch": lambda i: torch.nn.functional.linear(x, data[i % len(data)]),
    }
    for blocks in [] if smoke else TILES:

        def by_tiles(i: int, blocks: ProductBlocks = blocks) -> torch.Tensor:
            with mock.patch.object(small_linear, "product_blocks", lambda *shape: blocks):
                return small_linear.small_linear(x, data[i % len(data)])

        sides[f"{blocks.block_o}x{blocks.block_k}, {blocks.num_stages} stages, {blocks.num_warps} warps"] = by_tiles
    return sides
