"""The rotation of a step's positions on a GPU: one look-up instead of the nine operations of transformers.

Where angles depend on the position alone, cosines and sines of all positions are made once, by the module itself, so
that a step reads the bits that it would have made.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

from caw.decoding.forward.fused_layers import GPU_DTYPES, GPU_ROWS, LAYERS, class_name, on_gpu

STATIC = ("default", "linear", "llama3", "yarn")  # kinds of rotation with the same angles for texts of all lengths
MODULES = {name.removesuffix("DecoderLayer") + "RotaryEmbedding" for name in LAYERS}


def rotary_forwards(model: Any, places: int) -> list[tuple[dict[str, Any], Any]]:
    """(attributes of a rotary embedding, what its forward is to be in a step) of every one that a table can replace.

    places: positions that texts may reach, rows that follow them in one forward aside.
    """
    forwards = []
    for body in model.modules():
        module, embedding = getattr(body, "rotary_emb", None), getattr(body, "embed_tokens", None)
        if module is None or embedding is None or class_name(module) not in MODULES or "forward" in module.__dict__:
            continue
        weight = getattr(embedding, "weight", None)  # None = packed blocks, which are on a CPU
        if weight is not None and on_gpu(weight) and weight.dtype in GPU_DTYPES and module.rope_type in STATIC:
            rows = 1 << (places + GPU_ROWS).bit_length()  # few sizes, so that calls share tables
            forwards.append((module.__dict__, TabledRotary(module, rows, weight)))
    return forwards


class TabledRotary:
    """What a rotary embedding's forward is: rows of a table for as many positions as a step has, else its own.

    places: rows of the table. like: a tensor with the dtype and device of hidden states.
    """

    def __init__(self, module: Any, places: int, like: torch.Tensor) -> None:
        self.layer = module
        self.table = _table(module, places, like)

    def __call__(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        alike = x.dtype == self.table.dtype and x.device == self.table.device
        if not alike or position_ids.numel() > GPU_ROWS or torch.compiler.is_compiling():
            return type(self.layer).forward(self.layer, x, position_ids)
        both = self.table[position_ids]
        return both[..., 0, :], both[..., 1, :]


# of each module what its tables were made from, and they; none is dropped before the module: a kept graph reads it
_tables: WeakKeyDictionary[Any, list[tuple[tuple[Any, ...], torch.Tensor, torch.Tensor]]] = WeakKeyDictionary()


def _table(module: Any, places: int, like: torch.Tensor) -> torch.Tensor:
    """[places, 2, D], cosines and sines of every position as the module makes them; the same tensor again if it can."""
    source = module.inv_freq
    version = None if source.is_inference() else source._version
    about = (places, like.dtype, like.device, module.attention_scaling, version)
    there = _tables.setdefault(module, [])
    for known, frequencies, table in there:
        if known == about and frequencies is source:
            return table
    positions = torch.arange(places, device=like.device)[None]
    table = torch.stack(type(module).forward(module, like.new_empty(0), positions), dim=2)[0]
    there.append((about, source, table))
    return table
