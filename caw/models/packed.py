"""Linear layers with 8-bit or 4-bit weights on a GPU: `quantization="fp8"`, `"int8"` and `"int4"`.

int8 and int4 are rounded as on a CPU (`rounding`) and reordered for a GPU; fp8 is float8_e4m3fn with a scale per row.
The embedding stays dense, because a step reads only a few of its rows.
"""

from collections.abc import Callable
from typing import Any

import torch

from caw import ops
from caw.models.rounding import Q4_1, Q8_0, ROWS, blocks_of
from caw.triton_kernels.packed_weights_ref import BLOCK, BY_DTYPE, FORMATS, FP8, INT4, INT8, Format, join_row

FEW_ROWS = 64  # that the kernel takes; more read the weights once as dense ones
AT_ONCE = 1 << 27  # numbers of a matrix made dense, 256 MiB in half precision
LARGEST = 448.0  # of float8_e4m3fn


class PackedLinear(torch.nn.Module):
    """Replaces torch.nn.Linear: x [..., inputs] -> [..., outputs] in x's dtype, which is the bias's.

    Up to 64 rows are multiplied by the weights as they lie there, and a row has the same bits whatever rows come with
    it. For more the matrix is made dense first, or one part of it after another. No gradient. Stays on its kind of
    device and in its dtype.
    """

    packed: torch.Tensor
    bias: torch.Tensor | None

    def __init__(
        self, packed: torch.Tensor, outputs: int, inputs: int, dtype: torch.dtype, bias: torch.Tensor | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("packed", packed)
        self.register_buffer("bias", bias)
        self.outputs, self.inputs, self.dtype = outputs, inputs, dtype
        self.out_features, self.in_features = outputs, inputs

    @property
    def form(self) -> Format:
        return BY_DTYPE[self.packed.dtype]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product, plus the bias if there is one."""
        rows = x.reshape(-1, self.inputs)
        few = rows.shape[0] <= FEW_ROWS
        out = ops.packed_linear(rows.contiguous(), self.packed, self.bias) if few else self._by_dense(rows)
        return out.view(*x.shape[:-1], self.outputs)

    @property
    def dense_rows(self) -> int:
        """Outputs whose weights are made dense at once."""
        return min(max(AT_ONCE // self.inputs, 1), self.outputs)

    @property
    def dense_bytes(self) -> int:
        """Their memory in bytes."""
        return self.dense_rows * self.inputs * self.dtype.itemsize

    def _by_dense(self, rows: torch.Tensor) -> torch.Tensor:
        step = self.dense_rows
        biases = [None] * -(-self.outputs // step) if self.bias is None else self.bias.split(step)
        parts = [
            torch.nn.functional.linear(rows, ops.unpack_weight(packed, self.inputs, rows.dtype), bias)
            for packed, bias in zip(self.packed.split(step), biases, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        to = _probed(fn, self.dtype, self.packed.device)
        if to != self.packed.device:
            self.packed, self.bias = self.packed.to(to), None if self.bias is None else self.bias.to(to)
        return self


class _Stays(torch.nn.Module):
    """A child that moves visit first: a move that packed weights reject is rejected before any part has moved."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.dtype, self.device = dtype, device

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        self.device = _probed(fn, self.dtype, self.device)
        return self


OF_HERE = (PackedLinear, _Stays)


def _probed(fn: Callable[..., Any], dtype: torch.dtype, device: torch.device) -> torch.device:
    """Return the device that `fn` moves to. ValueError if it is of another kind, or `fn` changes the dtype."""
    probe: torch.Tensor = fn(torch.zeros(1, dtype=dtype, device=device))
    if probe.dtype != dtype or probe.device.type != device.type:
        raise ValueError(
            f"expected a model of packed weights to stay in {dtype} on {device.type}, found a move to {probe.dtype} on "
            f"{probe.device}; load it with that dtype and device"
        )
    return probe.device


def pack_model(model: Any, weights: str, device: torch.device) -> Any:
    """Pack linear layers in place: "fp8", "int8" or "int4" (a tied vocabulary: 8 bits); partial blocks stay dense."""
    tables = {id(m.weight) for m in model.modules() if type(m) is torch.nn.Embedding}
    for name, module in list(model.named_modules()):
        if type(module) is not torch.nn.Linear:
            continue
        form = INT8 if weights == "int4" and id(module.weight) in tables else FORMATS[weights]
        if form.takes(module.in_features):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, packed_layer(module, form, device))
    model.to(device)
    dtype = model.dtype
    for module in reversed(list(model.modules())):
        if any(type(part) is PackedLinear for part in module.modules()) and type(_first(module)) not in OF_HERE:
            _put_first(module, _Stays(dtype, device))
    return model


def _first(module: torch.nn.Module) -> torch.nn.Module | None:
    # the part that a move comes to first; None if there is nothing to move
    parts = (_first(child) for child in module.children())
    own = type(module) in OF_HERE or module._parameters or module._buffers
    return next((part for part in parts if part is not None), module if own else None)


def _put_first(module: torch.nn.Module, stays: _Stays) -> None:
    while isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):  # which count their children
        module = module[0]
    children = dict(module._modules)
    module._modules.clear()
    module.add_module("stays", stays)
    module._modules.update(children)


def packed_layer(layer: torch.nn.Linear, form: Format, device: torch.device) -> PackedLinear:
    """Return a linear layer on this device with quantized weights; a layer on the meta device stays there."""
    weight, bias = layer.weight.data, None if layer.bias is None else layer.bias.data.to(device)
    outputs, inputs = weight.shape
    packed = pack_weight(weight.to(device), form)
    return PackedLinear(packed, outputs, inputs, weight.dtype, bias)


def pack_weight(weight: torch.Tensor, form: Format) -> torch.Tensor:
    """Return [O, K] quantized and packed, [O, bytes] in the format's dtype, on its device."""
    if weight.is_meta:
        return torch.empty(weight.shape[0], form.row(weight.shape[1]), dtype=form.dtype, device="meta")
    return torch.cat([_packed_rows(rows.float(), form).view(torch.uint8) for rows in weight.split(ROWS)]).view(
        form.dtype
    )


def _packed_rows(weight: torch.Tensor, form: Format) -> torch.Tensor:
    rows, size = weight.shape
    if form is FP8:
        # the least power of two with which the greatest number of a row is at most LARGEST
        part, exponent = torch.frexp(weight.abs().amax(1, keepdim=True) / LARGEST)
        scale = torch.ldexp(torch.ones_like(weight[:, :1]), exponent - (part == 0.5).to(exponent.dtype))
        return join_row((weight / scale).to(form.dtype), scale, form, size)
    kind = Q4_1 if form is INT4 else Q8_0
    blocks = blocks_of(weight, kind).view(rows, size // BLOCK, -1)
    table, quants = blocks.split([form.table, blocks.shape[-1] - form.table], dim=-1)
    if form is INT4:
        quants = torch.cat([quants & 15, quants >> 4], dim=-1).unflatten(-1, (2, 2, -1))  # inputs j, j + 8, ...
        quants = (quants[:, :, :, 0] | quants[:, :, :, 1] << 4).transpose(2, 3)  # two bytes of each word
    else:
        quants = quants ^ 128
    return join_row(quants.reshape(rows, -1), table.reshape(rows, -1), form, size)
