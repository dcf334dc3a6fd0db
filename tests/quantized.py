"""Quantized blocks for tests: random bytes of every type, with scales that are finite, and what they stand for."""

import numpy as np
import pytest
import torch

from caw.ops_ref.block_types import BLOCK_TYPES

# bytes of a block at which its float16 numbers begin
HALVES = {2: [0], 3: [0, 2], 6: [0], 7: [0, 2], 8: [0], 10: [80, 82], 11: [108], 12: [0, 2], 13: [0, 2], 14: [208]}


def random_blocks(kind: int, outputs: int, across: int, seed: int = 0, size: float = 0.02) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (outputs, across, BLOCK_TYPES[kind].bytes), dtype=np.uint8)
    for place in HALVES[kind]:
        halves = (rng.standard_normal((outputs, across, 1)) * size).astype(np.float16)
        blocks[:, :, place : place + 2] = halves.view(np.uint8)
    return torch.from_numpy(blocks.reshape(outputs, -1))


def dequantized(kind: int, blocks: torch.Tensor) -> torch.Tensor:
    gguf = pytest.importorskip("gguf")
    wide = gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType(kind))
    return torch.from_numpy(np.asarray(wide, dtype=np.float32).reshape(blocks.shape[0], -1))
