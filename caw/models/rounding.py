"""Quantization of a model's matrices while loading, to blocks of 32 with a scale each: `quantization="int8"`, `"int4"`.

The blocks are ggml's Q8_0 and Q4_1: the greatest magnitude of a block becomes 127, or its minimum and maximum become 0
and 15.
"""

from typing import Any

import torch

from caw.models.huge_pages import HugePages
from caw.models.quantized import QuantizedEmbedding, QuantizedLinear
from caw.ops_ref.block_types import BLOCK_TYPES, UNIT

Q4_1, Q8_0 = 3, 8
ROWS = 4096  # of a matrix at once, so that a great vocabulary is not held three times


def quantize(model: Any, weights: str) -> Any:
    """Quantize linear layers and embeddings of whole blocks in place: "int8" or "int4".

    Shared tables stay shared. Everything else becomes float32, including layers whose rows are not a multiple of 32. A
    matrix is read 4096 rows at a time and freed before the next, so that memory never holds all of them next to their
    blocks.
    """
    pages = HugePages()
    for names in _matrices(model):
        _replace(model, names, weights, pages)
    model.config.dtype = torch.float32
    return model.float()


def _matrices(model: Any) -> list[list[str]]:
    """Return names of the layers to quantize, grouped by shared matrix; not the layers, which would keep their matrix
    alive.
    """
    found: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        if type(module) in (torch.nn.Linear, torch.nn.Embedding) and not module.weight.shape[1] % UNIT:
            found.setdefault(module.weight.data_ptr(), []).append(name)
    return list(found.values())


def _replace(model: Any, names: list[str], weights: str, pages: HugePages) -> None:
    """Replace these layers, which share one matrix, by blocks."""
    first = model.get_submodule(names[0])
    outputs, inputs = first.weight.shape
    kind = Q8_0 if weights == "int8" or isinstance(first, torch.nn.Embedding) else Q4_1
    packed = pages.pack(blocks_of(first.weight.data, kind), kind)
    for name in names:
        module = model.get_submodule(name)
        bias = getattr(module, "bias", None)
        made = (
            QuantizedEmbedding(packed, outputs, inputs)
            if isinstance(module, torch.nn.Embedding)
            else QuantizedLinear(packed, outputs, inputs, None if bias is None else bias.data.float())
        )
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, made)


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
