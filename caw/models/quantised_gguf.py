"""Models that compute with the blocks of a .gguf file as they are: nothing is dequantised, F16 and BF16 stay as well.

A file's blocks are put in the order that products read (`ops.pack_blocks`) each time it is loaded, straight into the
memory where they stay: half a second to a second for a gigabyte, of which reading a copy in that order would save less
than half and would take as much disk again. Kept on disk are the settings and the tokenizer, which take longer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from caw.models.gguf_file import FAMILIES, PLAIN, GGUFFile, TensorInfo, known_type
from caw.models.huge_pages import HugePages
from caw.models.messages import one_sentence
from caw.models.quantised import HalfEmbedding, HalfLinear, QuantisedEmbedding, QuantisedLinear
from caw.ops_ref.block_types import BLOCK_TYPES

HALVES = {1: torch.float16, 30: torch.bfloat16}  # by ggml's number
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PARTS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def require_family(kind: str, file: Path) -> None:
    """Raise ValueError for a model type whose layers are not known here."""
    if kind not in FAMILIES:
        raise ValueError(
            f"weights='file' knows {', '.join(FAMILIES)}, {file.name} is a {kind!r}; leave weights out to dequantise it"
        )


def quantised_model(file: GGUFFile, config: Any, fast: bool = False) -> Any:
    """The causal language model of a .gguf file with its own blocks as weights, in eval mode.

    config: transformers' config of the model. fast: products round their inputs to 8 bits.
    Raises ValueError in one sentence for a file that does not hold this model.
    """
    from transformers import AutoModelForCausalLM

    require_family(config.model_type, file.path)
    layers = config.num_hidden_layers
    if not isinstance(layers, int) or not 0 < layers <= len(file.tensors):
        raise ValueError(
            f"expected tensors of {layers} layers in {file.path}, found {len(file.tensors)}; download it again"
        )
    # other settings that lie show here: no heads, sizes beyond all numbers
    with one_sentence(file.path), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _Filler(file, config, fast).fill(model)
    # what is worked out, not stored, was left without numbers
    model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config)
    model.save_pretrained = _refuse_saving
    return model.eval().requires_grad_(False)


def _refuse_saving(*args: Any, **kwargs: Any) -> None:
    raise ValueError(
        "expected a model of plain weights to save, found the blocks of a .gguf file; copy that file, or load it with "
        "weights=None and a dtype"
    )


class _Filler:
    """Puts a file's tensors into the modules of a model that has none."""

    def __init__(self, file: GGUFFile, config: Any, fast: bool) -> None:
        self.file, self.fast = file, fast
        # llama.cpp keeps the two halves of Llama's rotary dimensions in turns
        turned = file.architecture == "llama"
        heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
        self.heads = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads or heads} if turned else {}
        self._packed: dict[str, torch.Tensor] = {}
        self._pages = HugePages()

    def fill(self, model: Any) -> None:
        for name, module in list(model.named_modules()):
            if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
                parent, _, own = name.rpartition(".")
                setattr(model.get_submodule(parent), own, self._layer(name, module))
            else:
                for own, parameter in module._parameters.items():
                    if parameter is not None:
                        module._parameters[own] = self._plain(f"{name}.{own}", parameter.shape)

    def _info(self, name: str) -> TensorInfo | None:
        """The tensor that the file has for a parameter of the model."""
        stem, _, suffix = name.rpartition(".")
        short = TOP.get(stem)
        if short is None:
            number, _, part = stem.removeprefix("model.layers.").partition(".")
            short = f"blk.{number}.{PARTS.get(part, part)}"
        found = self.file.tensors.get(f"{short}.{suffix}")
        if found is None and name == "lm_head.weight":
            return self.file.tensors.get("token_embd.weight")  # one table for both
        return found

    def _wanted(self, name: str, shape: torch.Size) -> TensorInfo:
        info = self._info(name)
        if info is None or info.shape != tuple(shape):
            found = "none" if info is None else list(info.shape)
            raise ValueError(f"expected {name} {list(shape)} in {self.file.path}, found {found}; download it again")
        if not known_type(info.kind):
            raise ValueError(
                f"weights='file' knows F32, F16, BF16 and {', '.join(b.name for b in BLOCK_TYPES.values())}, found "
                f"ggml's type {info.kind} for {info.name}; take another file, or leave weights out to dequantise it"
            )
        return info

    def _plain(self, name: str, shape: torch.Size) -> torch.nn.Parameter:
        info = self._wanted(name, shape)
        if info.kind not in PLAIN:
            raise ValueError(f"expected plain numbers for {info.name}, found blocks in {self.file.path}; take another")
        return torch.nn.Parameter(torch.from_numpy(self._in_order(name, self.file.floats(info))), requires_grad=False)

    def _in_order(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Whole rows as the model wants them."""
        heads = next((count for part, count in self.heads.items() if part in name), None)
        if heads is None:
            return rows
        if rows.shape[0] % (2 * heads):
            raise ValueError(
                f"expected rows of {heads} heads for {name}, found {rows.shape[0]}; download the file again"
            )
        turned = rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1).swapaxes(1, 2)
        return np.ascontiguousarray(turned).reshape(rows.shape)

    def _half(self, rows: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        """A copy of uint8 [outputs, bytes of a row] as numbers of 16 bits, beside what is packed."""
        return self._pages.empty(rows.size).copy_(torch.from_numpy(rows).flatten()).view(dtype).view(len(rows), -1)

    def _layer(self, name: str, module: Any) -> torch.nn.Module:
        weight = f"{name}.weight"
        info = self._wanted(weight, module.weight.shape)
        outputs, inputs = info.shape
        bias = getattr(module, "bias", None)
        added = None if bias is None else self._plain(f"{name}.bias", bias.shape)
        if info.kind in PLAIN and info.kind not in HALVES:
            module.weight, module.bias = self._plain(weight, module.weight.shape), added
            return module
        if info.name not in self._packed:
            rows = self._in_order(weight, self.file.array(info))
            if info.kind in HALVES:
                self._packed[info.name] = self._half(rows, HALVES[info.kind])
            else:
                self._packed[info.name] = self._pages.pack(torch.from_numpy(rows), info.kind, self.fast)
            self.file.forget(info)
        packed, half = self._packed[info.name], info.kind in HALVES
        if isinstance(module, torch.nn.Embedding):
            return (HalfEmbedding if half else QuantisedEmbedding)(packed, outputs, inputs)
        return (HalfLinear if half else QuantisedLinear)(packed, outputs, inputs, None if added is None else added.data)
