"""Whole decoder layers in one operator each.

A layer of transformers is some 60 small operators, and launching them costs a step more than their arithmetic does.
The layers of four architectures are one formula, `decoder_layer`, and run as one operator: on a CPU in C++, on a GPU in
seven launches. On a CPU so do those of prompts, `prefill_layer`, whose arithmetic is the step's: a token's keys and
values are the same bits whether it was prompted, alone or among others, in however many pieces, or decoded.
"""

from __future__ import annotations

from operator import is_
from typing import Any

import torch
from torch.nn import Linear
from torch.nn.modules import module as module_state

from caw import ops
from caw.decoding.forward.attention import Layout, declared_window
from caw.models.packed import PackedLinear
from caw.models.quantised import QuantisedLinear
from caw.triton_kernels.packed_weights_ref import BY_DTYPE

# class of the layer -> how its parts are named; other classes, subclasses among them, run as they are
LAYERS = {
    f"transformers.models.{module}.modeling_{module}.{prefix}DecoderLayer"
    for module, prefix in (("llama", "Llama"), ("mistral", "Mistral"), ("qwen2", "Qwen2"), ("qwen3", "Qwen3"))
}
PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
               "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # fmt: skip
NORMS = ("input_layernorm", "post_attention_layernorm")
ACTIVATIONS = ("SiLU", "SiLUActivation")  # torch's and transformers' names of one function
PACKED = (QuantisedLinear, PackedLinear)
DTYPES = (torch.float32, torch.bfloat16)  # of the operators on a CPU
GPU_DTYPES = (*DTYPES, torch.float16)
GPU_ROWS = 64  # most rows of a step that the operators take there; more are the business of general products
GPU_WIDTH, GPU_DIM = 16384, 256  # greatest hidden size and head dimension there


def fused_forwards(model: Any) -> list[tuple[dict[str, Any], Any]]:
    """(attributes of a layer, what its forward is to be in a decoding step) of every layer that can be fused.

    A layer runs as it is if its class is not in LAYERS or somebody replaced some part of it before; and, looked at in
    every forward, if it is training, has a hook or has weights that are not plain tensors of one type. All do in
    prefill where `prefill_attention` asks for another attention than "sdpa".
    """
    layers = [layer for layer in model.modules() if fusible(layer) and dtypes_on(layer.input_layernorm.weight)]
    return [(layer.__dict__, FusedLayer(layer)) for layer in layers]


def fusible(layer: torch.nn.Module) -> bool:
    """Whether this layer computes exactly what `decoder_layer` does."""
    if class_name(layer) not in LAYERS:
        return False
    kind = type(layer)
    prefix = kind.__name__.removesuffix("DecoderLayer")
    norms = {*NORMS, *(("self_attn.q_norm", "self_attn.k_norm") if prefix == "Qwen3" else ())}
    expected = {
        "": kind.__name__, "self_attn": f"{prefix}Attention", "mlp": f"{prefix}MLP",
        **dict.fromkeys(norms, f"{prefix}RMSNorm"),
    }  # fmt: skip
    parts = dict(layer.named_modules())
    linear = type(parts.get(PROJECTIONS[0]))
    if linear is PackedLinear and not on_gpu(layer.input_layernorm.weight):  # only Triton's kernels read those
        return False
    linear = linear if linear in PACKED else Linear
    expected.update(dict.fromkeys(PROJECTIONS, str(linear.__name__)))
    names = {name: type(part).__name__ for name, part in parts.items() if name != "mlp.act_fn"}
    if names != expected or any(type(parts[name]) is not linear for name in PROJECTIONS):
        return False
    plain = all(_untouched(part) for part in parts.values()) and not layer.training
    return plain and type(parts["mlp.act_fn"]).__name__ in ACTIVATIONS


def class_name(module: torch.nn.Module) -> str:
    """Module and name of a module's class."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _untouched(module: torch.nn.Module) -> bool:
    """No hook and no replaced forward: neither would be called."""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return "forward" not in module.__dict__ and not any(hooks)


class FusedLayer:
    """What a layer's forward is: one operator, as long as the layer is what it was found to be.

    sources, bias_sources: where its weights and biases are kept. hooks: its parts' lists of them. children: where its
    parts are kept, and their names.
    """

    def __init__(self, layer: Any) -> None:
        attention = layer.self_attn
        self.layer, self.index, self.window = layer, attention.layer_idx, declared_window(attention)
        self.eps, self.scale = float(layer.input_layernorm.variance_epsilon), float(attention.scaling)
        head_norms = ("self_attn.q_norm", "self_attn.k_norm") if hasattr(attention, "q_norm") else ()
        order = (NORMS[0], *PROJECTIONS[:4], NORMS[1], *PROJECTIONS[4:], *head_norms)
        self.sources = [_source(layer.get_submodule(name)) for name in order]
        self.bias_sources = [_source(layer.get_submodule(name))[0] for name in PROJECTIONS]
        modules = list(layer.modules())
        self.hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        self.children = [(m._modules, name) for m in modules for name in m._modules]
        self._parts = [place[name] for place, name in self.children]
        self._weights: list[Any] = []
        self._usable = False
        _ = self.usable  # looked at now: torch.compile would compile again after a first call that notes it down

    @property
    def weights(self) -> list[Any]:
        return [source[name] for source, name in self.sources]

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of its matrices, [outputs, inputs] each."""
        return tuple(_shape(self.layer.get_submodule(name)) for name in PROJECTIONS)

    @property
    def usable(self) -> bool:
        """Whether the operator takes the weights that the layer has now; looked at closely only where they are new."""
        weights = self.weights
        if len(self._weights) != len(weights) or any(a is not b for a, b in zip(weights, self._weights, strict=True)):
            known = all(plain(weight) and dtypes_on(weight) for weight in weights)
            self._weights, self._usable = weights, known and _one_kind(weights)
        return self._usable and weights[0].dtype in dtypes_on(weights[0])

    def __call__(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        layout, rotary = kwargs.get("caw_layout"), kwargs.get("position_embeddings")
        known = layout is not None and rotary is not None and not args
        if not known or self._changed() or not self.usable:
            return type(self.layer).forward(self.layer, hidden_states, *args, **kwargs)
        assert layout is not None and rotary is not None
        if layout.places is not None:
            return self._drafted(hidden_states, rotary, layout)
        on_cpu = not on_gpu(hidden_states)
        if layout.drafts and (self._dense if on_cpu else _fits_gpu(hidden_states, layout)):
            return self._chained(hidden_states, rotary, layout)
        if layout.lengths is not None and not layout.drafts and (on_cpu or _fits_gpu(hidden_states, layout)):
            return self._run(hidden_states, rotary, layout)
        if layout.lengths is not None or not on_cpu or layout.cache.prefill_attention != "sdpa":
            return type(self.layer).forward(self.layer, hidden_states, *args, **kwargs)
        return self._prefill(hidden_states, rotary, layout.cache)

    def _changed(self) -> bool:
        """Whether it is training, has a hook, or has other parts than it had."""
        parts = [place.get(name) for place, name in self.children]
        other = not all(map(is_, parts, self._parts))
        return self.layer.training or any(self.hooks) or global_hooks() or other

    def _run(self, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], layout: Layout) -> torch.Tensor:
        cache, i = layout.cache, self.index
        assert cache.store is not None and cache.scratch is not None and layout.lengths is not None
        prefix, scratch = cache.store[i, :, : layout.lengths.shape[0], :, : layout.limit], cache.scratch[i]
        return ops.decoder_layer(
            hidden, *rotary, prefix[0], prefix[1], scratch[0], scratch[1], cache.slot, layout.lengths, self._weights,
            self._biases(), self.eps, self.scale, self.window, layout.rows,
        )  # fmt: skip

    def _prefill(self, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], cache: Any) -> torch.Tensor:
        layer, dim = cache.layers[self.index], rotary[0].shape[-1]
        if not layer.is_initialized:
            layer.lazy_initialization(
                *[hidden.new_empty(1, self.layer.self_attn.v_proj.out_features // dim, 0, dim)] * 2
            )
        keys, values = layer.owner.store[layer.index]
        layer.attended = True
        # the rotation is one for all rows, so it comes once
        rotary = tuple(x.expand(*hidden.shape[:2], -1) for x in rotary)
        return ops.prefill_layer(
            hidden, *rotary, keys, values, *layer.owner.prefill_places(hidden.shape[1]), self._weights, self._biases(),
            self.eps, self.scale, self.window,
        )  # fmt: skip

    def _drafted(self, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], layout: Layout) -> torch.Tensor:
        keys, values = layout.cache.layers[self.index].owner.store[self.index]
        return ops.prefill_layer(
            hidden, *rotary, keys, values, layout.rows, layout.lengths, self._weights, self._biases(), self.eps,
            self.scale, self.window, layout.places,
        )  # fmt: skip

    @property
    def _dense(self) -> bool:
        """Whether no weight is packed: those have products of their own."""
        return self._weights[1].dtype != torch.uint8

    def _chained(self, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], layout: Layout) -> torch.Tensor:
        cache, i = layout.cache, self.index
        assert cache.store is not None and cache.scratch is not None and layout.lengths is not None
        prefix, scratch = cache.store[i, :, : layout.lengths.shape[0], :, : layout.limit], cache.scratch[i]
        return ops.drafted_layer(
            hidden, *rotary, prefix[0], prefix[1], scratch[0], scratch[1], layout.lengths, self._weights,
            self._biases(), self.eps, self.scale, layout.drafts, self.window,
        )  # fmt: skip

    def _biases(self) -> list[Any]:
        return [source["bias"] for source in self.bias_sources]


def _source(module: torch.nn.Module) -> tuple[dict[str, Any], str]:
    """Where a module keeps its weight and its bias, and under which name the weight."""
    if isinstance(module, PACKED):
        return module._buffers, "packed"
    return module._parameters, "weight"


def _shape(module: Any) -> tuple[int, ...]:
    return (module.outputs, module.inputs) if isinstance(module, PACKED) else tuple(module.weight.shape)


def _one_kind(weights: list[torch.Tensor]) -> bool:
    """Whether all have one dtype, but for packed ones of one format; on a CPU those go with float32."""
    kinds = {weight.dtype for weight in weights}
    packed = kinds & BY_DTYPE.keys()
    if not packed or on_gpu(weights[0]):
        return len(kinds - packed) == 1 and len(packed) <= 1
    return kinds == {torch.float32, torch.uint8}


def plain(weight: torch.Tensor) -> bool:
    """Dense numbers in memory, no quantised or otherwise wrapped tensor."""
    own = type(weight) in (torch.Tensor, torch.nn.Parameter) and type(weight.data) is torch.Tensor
    return own and weight.is_contiguous()


def on_gpu(tensor: torch.Tensor) -> bool:
    """Without contents (meta) a tensor stands for one on a GPU: the model of a step is made of such."""
    return tensor.is_cuda or tensor.is_meta


def dtypes_on(tensor: torch.Tensor) -> tuple[torch.dtype, ...]:
    """What the operators take where the tensor is: with the extension on a CPU, by Triton on a GPU."""
    if on_gpu(tensor):
        return GPU_DTYPES
    return DTYPES if tensor.is_cpu and not ops.missing_extension() else ()


def few_enough(x: torch.Tensor) -> bool:
    """Whether `small_linear` takes as many rows as x [..., K] has."""
    return not on_gpu(x) or x.numel() <= GPU_ROWS * x.shape[-1]


def _fits_gpu(hidden: torch.Tensor, layout: Layout) -> bool:
    """Whether Triton's `decoder_layer` takes this step, and attention is not asked of another package."""
    store = getattr(layout.cache, "store", None)  # none spans several devices
    if layout.cache.kernels.sibling_attention is not ops.sibling_attention or store is None:
        return False
    dim = store.shape[-1]
    return few_enough(hidden) and hidden.shape[2] <= GPU_WIDTH and dim <= GPU_DIM and dim % 2 == 0


def global_hooks() -> bool:
    """Whether some hook is called around every module's forward."""
    return bool(module_state._global_forward_hooks or module_state._global_forward_pre_hooks)
