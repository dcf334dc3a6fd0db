"""Linear layers of a step: each weight read once, and a row the same bits beside any others.

A step's time is the reading of the weights. General matrix products pack them first, which makes two rows cost
up to twice what one row costs; `small_linear` does not, so that looking ahead through C candidates costs about as much
as one token. General products also sum in another order at other numbers of rows, which would make a text depend on
what is decoded beside it; so on a CPU prompts and large batches, where they are the faster ones, take `small_linear`
too. On a GPU more rows than a step of a few texts has take general products."""

from typing import Any

import torch
from torch.nn import Linear
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from caw import ops
from caw.decoding.forward import fused_layers
from caw.decoding.forward.fused_layers import (
    GPU_DTYPES,
    GPU_WIDTH,
    dtypes_on,
    few_enough,
    fused_forwards,
    norm_eps,
    plain,
)
from caw.decoding.forward.fused_stack import Installed, with_stacks
from caw.decoding.forward.layer_kinds import ON_GPU, class_name
from caw.decoding.forward.rotary_table import rotary_forwards
from caw.models.packed import PackedLinear
from caw.models.parts import ModelParts
from caw.triton_kernels.decoder_layer_ref import FAMILIES


class FusedForwards(Installed):
    """Replace the forwards of layers inside the block: plain linear layers run as `small_linear`, decoder layers that
    `fused_layers` knows as one operator each or all as one (`fused_stack`), on a GPU norms as one operator too.

    Made once for a model and entered around every prefill and step; nothing of it is left outside. Does nothing on a
    CPU without the compiled extension, for layers that are not exactly torch.nn.Linear or GPT-2's Conv1D or whose
    forward somebody replaced, and, call by call, for weights that the operators do not take: not contiguous, of another
    dtype (`dtypes_on`), or on a GPU with more than GPU_ROWS rows. Conv1D keeps its weight [in, out], so on a CPU a copy
    [out, in] stands beside it for as long as this object lives; a GPU's memory has no room for one.

    places: positions that texts may reach, for which a GPU's rotations come from a table (`rotary_table`); None = none.
    """

    def __init__(self, model: Any, *, enabled: bool, stacks: bool = True, places: int | None = None) -> None:
        super().__init__([])
        if enabled:
            layers = [m for m in model.modules() if type(m) in _FORWARDS and "forward" not in m.__dict__]
            layers = [m for m in layers if dtypes_on(m.weight) and (type(m) is Linear or m.weight.is_cpu)]
            forwards = [(m.__dict__, _FORWARDS[type(m)](m)) for m in layers] + fused_forwards(model)
            self.forwards = [*with_stacks(model, forwards), *norm_forwards(model)] if stacks else forwards
            if places is not None:
                self.forwards = self.forwards + rotary_forwards(model, places)
        self._parts = list(model.modules())[1:]  # without the model, which would keep itself alive

    @classmethod
    def of(cls, model: Any, *, enabled: bool, compiled: bool = False, places: int | None = None) -> Installed:
        """Return those made for this model before, as long as they would be the same now, with this call's rotations.

        They are the same while the model has the same parts, none of which has come to train, to be hooked or to have
        another forward, and its layers have the same settings.

        compiled: for torch.compile, whose code holds only as long as the functions that it was made from, and takes a
        minute to make. It takes layers, but no stack of them, which looks at all their parts, and neither table nor
        norm: it compiles these itself.
        """
        parts, name = ModelParts.of(model), "compiled" if compiled else "forwards"
        about = enabled, ops.missing_extension(), parts.hooked(model)
        layers: FusedForwards | None = parts.known(name, about)
        if layers is None or not layers.as_made():
            layers = cls(model, enabled=enabled, stacks=not compiled)
            if compiled or not layers.holds_copies():
                parts.keep(name, layers, about)
        for _, forward in layers.forwards if compiled else ():
            if isinstance(forward, _Transposed):
                forward.refresh()
        if places is None or not enabled:
            return layers
        return Installed([*layers.forwards, *rotary_forwards(model, places)])

    def as_made(self) -> bool:
        """Tell whether the layers have the settings that they had when these forwards were made."""
        return all(
            forward.as_made() for _, forward in self.forwards if not isinstance(forward, (_Forward, _Transposed))
        )

    def holds_copies(self) -> bool:
        """Tell whether it would hold memory beside the model's own, or keep that of buffers which a GPU needs free."""
        packed = (m for m in self._parts if isinstance(m, PackedLinear))
        return any(isinstance(f, _Transposed) for _, f in self.forwards) or any(m.packed.is_cuda for m in packed)


class _Forward:
    """Forward of a layer inside the block."""

    def __init__(self, layer: Linear) -> None:
        self.layer = layer

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        return _product(x, weight, bias) if _fits(x, weight) else linear(x, weight, bias)


class _Transposed:
    """Forward of a Conv1D inside the block: x @ weight [in, out] + bias, its copy [out, in] made by the first call."""

    def __init__(self, layer: Conv1D) -> None:
        self.layer = layer
        self._copy: torch.Tensor | None = None

    def refresh(self) -> None:
        """Copy the weight again, in place, since it may have changed."""
        if self._copy is not None:
            self._copy.copy_(self.layer.weight.detach().t())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        if not _fits(x, weight):
            return linear(x, weight.t(), bias)
        if self._copy is None or self._copy.dtype != weight.dtype:
            self._copy = weight.detach().t().contiguous()
        return _product(x, self._copy, bias)


def _fits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    fits = few_enough(x) and weight.numel() > 0 and weight.dtype in dtypes_on(weight) and weight.dtype == x.dtype
    return fits and plain(weight)


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return ops.small_linear(x.reshape(-1, x.shape[-1]).contiguous(), weight, bias).view(*x.shape[:-1], -1)


_FORWARDS = {Linear: _Forward, Conv1D: _Transposed}


# class of the norm -> what is added to its weights
NORMS = {
    name.removesuffix("DecoderLayer") + "RMSNorm": FAMILIES[kind.family].norm_offset for name, kind in ON_GPU.items()
}


def norm_forwards(model: Any) -> list[tuple[dict[str, Any], Any]]:
    """Return (attributes of a norm, its forward in a step) for every known norm on a GPU."""
    norms = [module for module in model.modules() if class_name(module) in NORMS and "forward" not in module.__dict__]
    return [(norm.__dict__, _SmallNorm(norm)) for norm in norms if fused_layers.on_gpu(norm.weight)]


class _SmallNorm:
    """Forward of a norm inside the block: one operator for the rows and weights that it takes, else its own."""

    def __init__(self, layer: Any) -> None:
        self.layer, self.offset, self.eps = layer, NORMS[class_name(layer)], norm_eps(layer)

    def as_made(self) -> bool:
        return self.eps == norm_eps(self.layer)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.layer.weight
        known = weight.dtype in GPU_DTYPES and weight.dtype == x.dtype and plain(weight)
        if not known or not few_enough(x) or not 1 <= x.shape[-1] <= GPU_WIDTH:
            normed: torch.Tensor = type(self.layer).forward(self.layer, x)
            return normed
        return ops.rms_norm(x.contiguous(), weight, self.eps, self.offset)
