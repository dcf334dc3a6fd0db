"""Whole decoder layers in one operator each.

A layer of transformers is some 60 small operators, and launching them costs a step more than their arithmetic does.
The layers of several architectures (`layer_kinds`) are one formula and run as one operator: on a CPU in C++, on a GPU
in seven or eight launches. On a CPU so do those of prompts, whose arithmetic is the step's: a token's keys and values
are the same bits whether it was prompted, alone or among others, in however many pieces, or decoded.
"""

from operator import is_
from typing import Any

import torch
from torch.nn import Linear
from torch.nn.modules import module as module_state

from caw import ops
from caw.decoding.forward.attention import Layout, declared_window, windows_of
from caw.decoding.forward.layer_kinds import LayerKind, kind_of, rows_of, split
from caw.models.packed import PackedLinear
from caw.models.parts import runs_as_written
from caw.models.quantized import HalfLinear, QuantizedLinear
from caw.ops_ref.block_types import TILE_OUTPUTS
from caw.triton_kernels.packed_weights_ref import BY_DTYPE

PACKED = (QuantizedLinear, HalfLinear, PackedLinear)
DTYPES = (torch.float32, torch.bfloat16)  # of the operators on a CPU
GPU_DTYPES = (*DTYPES, torch.float16)
GPU_ROWS = 64  # most rows of a step that the operators take there; more are the business of general products
GPU_WIDTH, GPU_DIM = 16384, 256  # greatest hidden size and head dimension there


def fused_forwards(model: Any) -> list[tuple[dict[str, Any], Any]]:
    """Return (attributes of a layer, its forward in a step) for every layer that can be fused.

    A layer runs as it is if its class is not in LAYERS or somebody replaced some part of it before; and, looked at in
    every forward, if it is training, has a hook or has weights that are not plain tensors of one type. All do in
    prefill where `prefill_attention` asks for another attention than "sdpa".
    """
    layers = [layer for layer in model.modules() if fusible(layer) and dtypes_on(layer.input_layernorm.weight)]
    return [(layer.__dict__, FusedLayer(layer)) for layer in layers]


def fusible(layer: torch.nn.Module) -> bool:
    """Tell whether this layer computes exactly what the operators of its device do."""
    kind = kind_of(layer)
    if kind is None:
        return False
    gpu, parts = on_gpu(layer.input_layernorm.weight), dict(layer.named_modules())
    linear = type(parts.get(kind.matrices[0]))
    if (linear is PackedLinear and not gpu) or (gpu and not kind.gpu):  # weights of a GPU, or a kind of a CPU
        return False
    linear = linear if linear in PACKED else Linear
    names = {name: type(part).__name__ for name, part in parts.items() if name != kind.activation}
    if names != kind.parts(linear.__name__) or any(type(parts[name]) is not linear for name in kind.matrices):
        return False
    plain = all(runs_as_written(part) for part in parts.values()) and not layer.training
    one_eps = len({norm_eps(parts[name]) for name in kind.all_norms}) == 1  # the operators take one
    apart = linear is not QuantizedLinear or _in_whole_tiles(layer, kind)
    return plain and one_eps and apart and kind.activates(parts[kind.activation])


def _in_whole_tiles(layer: Any, kind: LayerKind) -> bool:
    """Tell whether each matrix within a merged one begins with rows that are packed together."""
    sizes = [rows_of(layer, kind, i, layer.get_submodule(name).outputs) for i, name in enumerate(kind.matrices)]
    return not any(rows % TILE_OUTPUTS for one in sizes for rows in one[:-1])


def norm_eps(norm: Any) -> float:
    """Return what a norm adds to the mean square."""
    return float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)


class FusedLayer:
    """Forward of a layer in a step: one operator, as long as the layer, its parts and hooks, are what they were."""

    def __init__(self, layer: Any) -> None:
        kind = kind_of(layer)
        assert kind is not None
        self.layer, self.kind = layer, kind
        self.norms = [layer.get_submodule(name) for name in kind.all_norms]
        self.index, self.window, self.scale, self.eps, self.softcap, self.multiplier = self._settings({})
        self.sources = [_source(layer.get_submodule(name)) for name in kind.order]
        self.bias_sources = [_source(layer.get_submodule(name))[0] for name in kind.matrices]
        # theirs are of 16 bits beside norms of float32
        self._half = type(layer.get_submodule(kind.matrices[0])) is HalfLinear
        modules = list(layer.modules())
        self.hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        self.children = [(m._modules, name) for m in modules for name in m._modules]
        self._parts = [place[name] for place, name in self.children]
        self._weights: list[Any] = []
        self._usable = False
        _ = self.usable  # looked at now: torch.compile would compile again after a first call that notes it down

    def _settings(self, windows: dict[int, Any]) -> tuple[int, int | None, float, float, float | None, float]:
        attention, eps = self.layer.self_attn, norm_eps(self.layer.input_layernorm)
        softcap, config = attention.attn_logit_softcapping if self.kind.capped else None, attention.config
        if id(config) not in windows:
            windows[id(config)] = windows_of(config)
        window = declared_window(attention, windows[id(config)])
        multiplier = 1.0 if self.kind.multiplier is None else float(getattr(self.layer, self.kind.multiplier))
        return attention.layer_idx, window, float(attention.scaling), eps, softcap, multiplier

    def as_made(self, windows: dict[int, Any] | None = None) -> bool:
        """Tell whether the layer, its parts as they were, has the settings with which this was made.

        windows: of the configs of layers looked at before, by their `id`: transformers takes microseconds to read one.
        """
        one_eps = all(norm_eps(norm) == self.eps for norm in self.norms)
        now = self._settings({} if windows is None else windows)
        mine = self.index, self.window, self.scale, self.eps, self.softcap, self.multiplier
        return one_eps and mine == now

    @property
    def weights(self) -> list[Any]:
        return [source[name] for source, name in self.sources]

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes [outputs, inputs] of the matrices of PROJECTIONS."""
        modules = [self.layer.get_submodule(name) for name in self.kind.matrices]
        sizes = [module.inputs if isinstance(module, PACKED) else module.weight.shape[1] for module in modules]
        rows = [torch.empty(_outputs(module), 0, device="meta") for module in modules]
        parts = split(self.layer, self.kind, rows)
        before = (0, 0, 0, 1, 2, 2, 3) if self.kind.merged else range(len(parts))
        return tuple((part.shape[0], sizes[i]) for part, i in zip(parts, before, strict=True))

    def kept_shape(self) -> tuple[int, int]:
        """Return how many heads keys and values have, and of how many dimensions."""
        dim = self.layer.self_attn.head_dim
        return self.shapes()[1][0] // dim, dim

    def biases(self) -> list[Any]:
        """Return the biases of the matrices of PROJECTIONS, each of which may be None."""
        return split(self.layer, self.kind, [source["bias"] for source in self.bias_sources])

    @property
    def usable(self) -> bool:
        """Tell whether the operator takes the weights that the layer has now; checks only new ones closely."""
        weights = self.weights
        if len(self._weights) != len(weights) or any(a is not b for a, b in zip(weights, self._weights, strict=True)):
            known = all(plain(weight) and dtypes_on(weight) for weight in weights)
            self._weights, self._usable = weights, known and (self._half or _one_kind(weights))
        return self._usable and weights[0].dtype in dtypes_on(weights[0])

    def __call__(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        layout, rotary = kwargs.get("caw_layout"), kwargs.get("position_embeddings")
        known = layout is not None and rotary is not None and not args
        if not known or self._changed() or not self.usable:
            return type(self.layer).forward(self.layer, hidden_states, *args, **kwargs)
        assert layout is not None and rotary is not None
        if layout.places is not None:
            assert layout.lengths is not None
            owner = layout.cache.layers[self.index].owner
            return self._as_stack(hidden_states, rotary, owner, layout.lengths, layout.rows, layout.places)
        on_cpu = not on_gpu(hidden_states)
        if layout.lengths is not None and (on_cpu or _fits_gpu(hidden_states, layout)):
            return self._run(hidden_states, rotary, layout)
        if layout.lengths is not None or not on_cpu or layout.cache.prefill_attention != "sdpa":
            return type(self.layer).forward(self.layer, hidden_states, *args, **kwargs)
        return self._prefill(hidden_states, rotary, layout.cache)

    def _changed(self) -> bool:
        """Tell whether it is training, has a hook, or has other parts than it had."""
        parts = [place.get(name) for place, name in self.children]
        other = not all(map(is_, parts, self._parts))
        return self.layer.training or any(self.hooks) or global_hooks() or other

    def _run(self, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], layout: Layout) -> torch.Tensor:
        cache, i, kind = layout.cache, self.index, self.kind
        assert cache.store is not None and cache.scratch is not None and layout.lengths is not None
        if not on_gpu(hidden):
            return self._as_stack(hidden, rotary, cache, layout.lengths, layout.rows)
        prefix, scratch = cache.store[i, :, : layout.lengths.shape[0], :, : layout.limit], cache.scratch[i]
        weights = self._weights
        if not kind.as_llama:
            named = dict(zip(kind.order, weights, strict=True))
            matrices = split(self.layer, kind, [named[name] for name in kind.matrices])
            before, between = (named[name] for name in kind.norms)
            weights = [before, *matrices[:4], between, *matrices[4:], *weights[len(kind.matrices) + 2 :]]
        return ops.decoder_layer(
            hidden, *rotary, *prefix, *scratch, cache.slot, layout.lengths, weights, self.biases(), self.eps,
            self.scale, self.window, layout.rows, kind.family, self.softcap,
        )  # fmt: skip

    def _as_stack(
        self, hidden: torch.Tensor, rotary: tuple[torch.Tensor, ...], cache: Any, lengths: torch.Tensor,
        rows: torch.Tensor | None, places: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """The layer as a stack of one: a CPU has no operator for a layer alone."""
        layer = slice(self.index, self.index + 1)
        return ops.decoder_stack(
            hidden, *rotary, cache.store[layer], cache.scratch[layer], cache.slot, lengths, self._weights,
            [source["bias"] for source in self.bias_sources], self.eps, self.scale, [self.window or 0], rows, places,
            self.kind.family, self.softcap, [], self.multiplier,
        )  # fmt: skip

    def _prefill(self, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], cache: Any) -> torch.Tensor:
        layer = cache.layers[self.index]
        if not layer.is_initialized:
            heads, dim = self.kept_shape()
            layer.lazy_initialization(*[hidden.new_empty(1, heads, 0, dim)] * 2)
        layer.attended = True
        # the rotation is one for all rows, so it comes once
        turned = tuple(x.expand(*hidden.shape[:2], -1) for x in rotary)
        rows, positions = layer.owner.prefill_places(hidden.shape[1])
        return self._as_stack(hidden, turned, layer.owner, positions, rows, positions)


def _source(module: torch.nn.Module) -> tuple[dict[str, Any], str]:
    """Where a module keeps its weight and its bias, and under which name the weight."""
    if isinstance(module, PACKED):
        return module._buffers, "packed"
    return module._parameters, "weight"


def _outputs(module: Any) -> int:
    return module.outputs if isinstance(module, PACKED) else module.weight.shape[0]


def _one_kind(weights: list[torch.Tensor]) -> bool:
    """Tell whether all have one dtype, but for packed ones of one format; on a CPU those go with float32."""
    kinds = {weight.dtype for weight in weights}
    packed = kinds & BY_DTYPE.keys()
    if not packed or on_gpu(weights[0]):
        return len(kinds - packed) == 1 and len(packed) <= 1
    return kinds == {torch.float32, torch.uint8}


def plain(weight: torch.Tensor) -> bool:
    """Tell whether it is dense in memory, not a quantized or otherwise wrapped tensor."""
    bare = type(weight) in (torch.Tensor, torch.nn.Parameter) and type(weight.data) is torch.Tensor
    return bare and weight.is_contiguous()


def on_gpu(tensor: torch.Tensor) -> bool:
    """Without contents (meta) a tensor stands for one on a GPU: the model of a step is made of such."""
    return tensor.is_cuda or tensor.is_meta


def dtypes_on(tensor: torch.Tensor) -> tuple[torch.dtype, ...]:
    """Return the dtypes that the operators take on the tensor's device."""
    if on_gpu(tensor):
        return GPU_DTYPES
    return DTYPES if tensor.is_cpu and not ops.missing_extension() else ()


def few_enough(x: torch.Tensor) -> bool:
    """Tell whether `small_linear` takes as many rows as x [..., K] has."""
    return not on_gpu(x) or x.numel() <= GPU_ROWS * x.shape[-1]


def _fits_gpu(hidden: torch.Tensor, layout: Layout) -> bool:
    """Tell whether Triton's `decoder_layer` takes this step, and its attention is not the reference."""
    store = getattr(layout.cache, "store", None)  # none spans several devices
    if layout.cache.kernels.sibling_attention is not ops.sibling_attention or store is None:
        return False
    dim = store.shape[-1]
    return few_enough(hidden) and hidden.shape[2] <= GPU_WIDTH and dim <= GPU_DIM and dim % 2 == 0


def global_hooks() -> bool:
    """Tell whether some hook is called around every module's forward."""
    return bool(module_state._global_forward_hooks or module_state._global_forward_pre_hooks)
