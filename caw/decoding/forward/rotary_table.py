"""Rotary table of a step on a GPU: one lookup instead of the nine operations of transformers.

Where angles depend on the position alone, cosines and sines of all positions are made once, by the module itself, so
that a step reads the bits that it would have made. Tables have 4,096 rows or a power of two of them, but no more than a
model has positions, and one that is large enough serves shorter texts: while texts grow, all that were made before are
together smaller than the next.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch

from caw.decoding.forward.fused_layers import GPU_DTYPES, GPU_ROWS, on_gpu
from caw.decoding.forward.layer_kinds import ON_GPU, class_name
from caw.models.facts import ModelFacts

STATIC = ("default", "linear", "llama3", "yarn")  # kinds of rotation with the same angles for texts of all lengths
LAYERED = "gemma3"  # its rotation takes the kind of layer as well
KINDS = {name.split(".")[2] for name in ON_GPU} - {LAYERED}  # model types
PIECE = 4096  # rows that are made at once
MODULES = {name.removesuffix("DecoderLayer") + "RotaryEmbedding" for name in ON_GPU if LAYERED not in name}


def rotary_forwards(model: Any, places: int) -> list[tuple[dict[str, Any], Any]]:
    """Return (attributes of a rotary embedding, its forward in a step) for every one that a table can replace.

    places: positions that texts may reach, rows that follow them in one forward aside.
    """
    forwards = []
    for body in model.modules():
        module, embedding = getattr(body, "rotary_emb", None), getattr(body, "embed_tokens", None)
        if module is None or embedding is None or not _tabled(module) or "forward" in module.__dict__:
            continue
        weight = getattr(embedding, "weight", None)  # None = packed blocks, which are on a CPU
        if weight is not None and on_gpu(weight) and weight.dtype in GPU_DTYPES:
            rows = rows_of_table(getattr(module, "config", None), places)
            forwards.append((module.__dict__, TabledRotary(module, rows, weight)))
    return forwards


def rows_of_table(config: Any, places: int) -> int:
    """Count the rows of a table for texts of `places` positions and the rows that follow them in one forward."""
    needed, limit = places + GPU_ROWS, getattr(config, "max_position_embeddings", None)
    rows = max(PIECE, 1 << (needed - 1).bit_length())
    most = -(-(limit + GPU_ROWS) // PIECE) * PIECE if isinstance(limit, int) else rows
    return min(rows, most) if needed <= most else rows


def table_bytes(facts: ModelFacts, places: int) -> int:
    """Memory of a table and of making it, at most; 0 where there is none. places: as in `rotary_forwards`."""
    config = facts.config
    if facts.device.type != "cuda" or facts.kind not in KINDS:
        return 0
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    # of a piece: angles twice, both functions and both scaled in float32, then both as the model's numbers
    piece = PIECE * dim * (6 * 4 + 2 * facts.dtype.itemsize)
    return 2 * dim * facts.dtype.itemsize * rows_of_table(config, places) + piece


def rotations_of(model: Any) -> list[tuple[Any, ...]]:
    """Return what a captured step holds of the model's rotations beyond tensor addresses: numbers, and tables made of
    frequencies. Reads frequencies back from the device."""
    modules = [module for module in model.modules() if hasattr(module, "attention_scaling")]
    return [(module.attention_scaling, _numbers(module.inv_freq) if _tabled(module) else None) for module in modules]


def _tabled(module: Any) -> bool:
    return class_name(module) in MODULES and module.rope_type in STATIC


class TabledRotary:
    """Forward of a rotary embedding in a step: rows of a table for as many positions as a step has, else its own.

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
_tables: WeakKeyDictionary[Any, list[tuple[tuple[Any, ...], torch.Tensor]]] = WeakKeyDictionary()


def _table(module: Any, places: int, like: torch.Tensor) -> torch.Tensor:
    """[at least places, 2, D], cosines and sines of every position as the module makes them; one of before if it can.

    Frequencies are compared by their bits: no version counts what is written to `.data`.
    """
    about = (like.dtype, like.device, module.attention_scaling, _numbers(module.inv_freq))
    there = _tables.setdefault(module, [])
    for known, table in there:
        if known == about and table.shape[0] >= places:
            return table
    table = like.new_empty(places, 2, 2 * module.inv_freq.shape[0])
    for start in range(0, places, PIECE):
        positions = torch.arange(start, min(start + PIECE, places), device=like.device)
        pair = type(module).forward(module, like.new_empty(0), positions[None])
        torch.stack(pair, dim=2, out=table[None, start : start + PIECE])
    there.append((about, table))
    return table


def _numbers(frequencies: torch.Tensor) -> tuple[Any, ...]:
    """Bits of the frequencies; without contents, as in a model of the step, all are alike."""
    if frequencies.is_meta:
        return ()
    return frequencies.dtype, frequencies.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
