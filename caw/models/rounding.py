"""Quantization of a model's matrices while loading, to blocks of 32 with a scale each: `quantization="int8"`, `"int4"`.

The blocks are ggml's Q8_0 and Q4_1: the greatest magnitude of a block becomes 127, or its minimum and maximum become 0
and 15.
"""

from typing import Any

import torch

from caw.models.huge_pages import HugePages
from caw.models.quantized import QuantizedEmbedding, QuantizedLinear, replace_matrices
from caw.ops_ref.block_types import BLOCK_TYPES, UNIT

Q4_1, Q8_0 = 3, 8
ROWS = 4096  # of a matrix at once, so that a great vocabulary is not held three times


def quantize(model: Any, weights: str) -> Any:
    """Quantize linear layers and embeddings of whole blocks in place, "int8" or "int4"; the rest becomes float32."""
    pages = HugePages()

    def packed(weight: torch.Tensor, table: bool) -> torch.Tensor:
        kind = Q8_0 if weights == "int8" or table else Q4_1
        return pages.pack(blocks_of(weight, kind), kind)

    def takes(module: Any) -> bool:
        return type(module) in (torch.nn.Linear, torch.nn.Embedding) and not module.weight.shape[1] % UNIT

    return replace_matrices(model, QuantizedLinear, QuantizedEmbedding, takes, packed)


def blocks_of(weight: torch.Tensor, kind: int) -> torch.Tensor:
    """Return numbers [O, K] as uint8 [O, bytes] of Q8_0 or Q4_1 blocks, on their device; K a multiple of 32."""
    outputs, inputs = weight.shape
    made = torch.empty(outputs, inputs // UNIT * BLOCK_TYPES[kind].bytes, dtype=torch.uint8, device=weight.device)
    for out, rows in zip(made.split(ROWS), weight.split(ROWS), strict=True):
        out.copy_(_rounded(rows.float().unflatten(1, (-1, UNIT)), kind).flatten(1))
    return made


def _rounded(x: torch.Tensor, kind: int) -> torch.Tensor:
    """[O, N, 32] -> [O, N, bytes of a block]."""
    if kind == Q8_0:
        scale = (x.abs().amax(-1, keepdim=True) / 127).half()
        quants = _whole(x, scale, -127, 127).to(torch.int8).view(torch.uint8)
        return torch.cat([scale.view(torch.uint8), quants], dim=-1)
    least = x.amin(-1, keepdim=True).half()
    scale = ((x.amax(-1, keepdim=True) - least.float()) / 15).half()
    quants = _whole(x - least.float(), scale, 0, 15).to(torch.uint8)
    nibbles = quants[..., : UNIT // 2] | quants[..., UNIT // 2 :] << 4
    return torch.cat([scale.view(torch.uint8), least.view(torch.uint8), nibbles], dim=-1)


def _whole(x: torch.Tensor, scale: torch.Tensor, low: int, high: int) -> torch.Tensor:
    wide = scale.float()
    return torch.where(wide == 0, wide.new_zeros(()), (x / wide).round().clamp(low, high))
