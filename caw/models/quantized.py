"""Layers that hold quantized blocks and multiply by them directly."""

from collections.abc import Callable
from typing import Any

import torch

from caw import ops


class _Packed(torch.nn.Module):
    """Packed weights [outputs, inputs]; they stay on the CPU and compute in float32."""

    packed: torch.Tensor

    def __init__(self, packed: torch.Tensor, outputs: int, inputs: int) -> None:
        super().__init__()
        self.register_buffer("packed", packed)
        self.outputs, self.inputs = outputs, inputs

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        probe = fn(torch.zeros(1))
        if probe.dtype != torch.float32 or probe.device.type != "cpu":
            raise ValueError(
                "expected a model of quantized or 16-bit weights to stay in float32 on the CPU, found a move to "
                f"{probe.dtype} on {probe.device}; load it with load_model(..., quantization=None) and a dtype"
            )
        return self


class QuantizedLinear(_Packed):
    """torch.nn.Linear of blocks: float32 x [..., inputs] -> [..., outputs], row by row; ValueError for a gradient."""

    def __init__(self, packed: torch.Tensor, outputs: int, inputs: int, bias: torch.Tensor | None = None) -> None:
        super().__init__(packed, outputs, inputs)
        self.out_features, self.in_features = outputs, inputs
        self.register_buffer("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product, plus the bias if there is one."""
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                "expected inputs without a gradient, which quantized or 16-bit weights do not pass on, found one; load "
                "the model with quantization=None and dtype='float32' to train"
            )
        return self._product(x.reshape(-1, self.inputs)).view(*x.shape[:-1], self.outputs)

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        return ops.quantized_linear(rows, self.packed, self.outputs, self.bias)


class HalfLinear(QuantizedLinear):
    """The same for a 16-bit weight [outputs, inputs], widened when read: results of the float32 weight, bit for bit."""

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        return ops.small_linear(rows, self.packed, self.bias)


class HalfEmbedding(_Packed):
    """torch.nn.Embedding with a 16-bit weight: ids [...] -> float32 [..., inputs]. scale: the rows' factor (Gemma)."""

    def __init__(self, packed: torch.Tensor, outputs: int, inputs: int, scale: float = 1.0) -> None:
        super().__init__(packed, outputs, inputs)
        self.scale = scale

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(ids, self.packed).float()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of these ids, scaled. IndexError or RuntimeError for ids outside the vocabulary."""
        found = self.rows(ids)
        return found if self.scale == 1 else found * torch.tensor(self.scale)


class QuantizedEmbedding(HalfEmbedding):
    """Replaces torch.nn.Embedding: ids [...] -> float32 [..., inputs], the dequantized rows."""

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return ops.unpack_rows(self.packed, ids.reshape(-1), self.inputs).view(*ids.shape, self.inputs)


def replace_matrices(
    model: Any,
    linear: type[QuantizedLinear],
    table: type[HalfEmbedding],
    takes: Callable[[Any], bool],
    packed: Callable[[torch.Tensor, bool], torch.Tensor],
) -> Any:
    """Replace the layers `takes` accepts, one at a time, in place, by `packed` ones; the rest becomes float32."""
    found: dict[int, list[str]] = {}  # names, not layers, which would keep their matrices alive
    for name, module in model.named_modules():
        if takes(module):
            found.setdefault(module.weight.data_ptr(), []).append(name)
    for names in found.values():
        module = model.get_submodule(names[0])
        made = packed(module.weight.data, isinstance(module, torch.nn.Embedding))
        for name in names:
            parent, _, own = name.rpartition(".")
            module = model.get_submodule(name)
            outputs, inputs = module.weight.shape
            if isinstance(module, torch.nn.Embedding):
                module = table(made, outputs, inputs, getattr(module, "scalar_embed_scale", 1.0))
            else:
                bias = None if module.bias is None else module.bias.data.float()
                module = linear(made, outputs, inputs, bias)
            setattr(model.get_submodule(parent), own, module)
    model.config.dtype = torch.float32
    return model.float()
