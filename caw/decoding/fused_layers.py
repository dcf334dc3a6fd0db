"""Whole decoder layers of a step in one operator each, on a CPU.

A layer of transformers is some 60 small operators; launching them from Python takes as long as reading the weights of
a small model does. The layers of four architectures are one formula, `decoder_layer`, and run as one operator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Linear

from caw import ops
from caw.decoding.attention import Layout, declared_window

# class of the layer -> how its parts are named; other classes, subclasses among them, run as they are
LAYERS = {
    f"transformers.models.{module}.modeling_{module}.{prefix}DecoderLayer"
    for module, prefix in (("llama", "Llama"), ("mistral", "Mistral"), ("qwen2", "Qwen2"), ("qwen3", "Qwen3"))
}
PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
               "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # fmt: skip
NORMS = ("input_layernorm", "post_attention_layernorm")
ACTIVATIONS = ("SiLU", "SiLUActivation")  # torch's and transformers' names of one function
# beyond these numbers of rows the arithmetic, not the reading, takes the time, and general products win
MAX_ROWS = {torch.float32: 32, torch.bfloat16: 16}


def fused_forwards(model: Any) -> list[tuple[dict[str, Any], Any]]:
    """(attributes of a layer, what its forward is to be in a decoding step) of every layer that can be fused.

    Prefill runs the layers as they are, and so does every layer whose class is not in LAYERS, that is training, has a
    hook, or some part of which somebody replaced.
    """
    found = [(layer.__dict__, _Forward(layer)) for layer in model.modules() if fusible(layer)]
    return [(attributes, forward) for attributes, forward in found if forward.usable]


def fusible(layer: torch.nn.Module) -> bool:
    """Whether this layer computes exactly what `decoder_layer` does."""
    kind = type(layer)
    if f"{kind.__module__}.{kind.__qualname__}" not in LAYERS:
        return False
    prefix = kind.__name__.removesuffix("DecoderLayer")
    norms = {*NORMS, *(("self_attn.q_norm", "self_attn.k_norm") if prefix == "Qwen3" else ())}
    expected = {
        "": kind.__name__, "self_attn": f"{prefix}Attention", "mlp": f"{prefix}MLP",
        **dict.fromkeys(norms, f"{prefix}RMSNorm"), **dict.fromkeys(PROJECTIONS, "Linear"),
    }  # fmt: skip
    parts = dict(layer.named_modules())
    names = {name: type(part).__name__ for name, part in parts.items() if name != "mlp.act_fn"}
    if names != expected or any(type(parts[name]) is not Linear for name in PROJECTIONS):
        return False
    plain = all(_untouched(part) for part in parts.values()) and not layer.training
    return plain and type(parts["mlp.act_fn"]).__name__ in ACTIVATIONS


def _untouched(module: torch.nn.Module) -> bool:
    """No hook and no replaced forward: neither would be called."""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return "forward" not in module.__dict__ and not any(hooks)


class _Forward:
    """What a layer's forward is in a step. Holds the weights: they must not change their type while it is in use."""

    def __init__(self, layer: Any) -> None:
        attention = layer.self_attn
        projections = [layer.get_submodule(name) for name in PROJECTIONS]
        q, k, v, o, gate, up, down = (part.weight for part in projections)
        before, after = (getattr(layer, name) for name in NORMS)
        head_norms = [attention.q_norm.weight, attention.k_norm.weight] if hasattr(attention, "q_norm") else []
        self.layer, self.index, self.head_dim = layer, attention.layer_idx, attention.head_dim
        self.weights = [before.weight, q, k, v, o, after.weight, gate, up, down, *head_norms]
        self.biases = [part.bias for part in projections]
        self.options = float(before.variance_epsilon), float(attention.scaling), declared_window(attention)

    @property
    def usable(self) -> bool:
        dtype = self.weights[0].dtype
        return dtype in MAX_ROWS and all(w.is_cpu and w.is_contiguous() and w.dtype == dtype for w in self.weights)

    def __call__(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        layout, rotary = kwargs.get("caw_layout"), kwargs.get("position_embeddings")
        rows = hidden_states.shape[0] * hidden_states.shape[1]
        too_many = rows > MAX_ROWS[self.weights[0].dtype]
        if too_many or layout is None or layout.lengths is None or rotary is None or args:
            return type(self.layer).forward(self.layer, hidden_states, *args, **kwargs)
        return self._run(hidden_states, rotary, layout)

    def _run(self, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], layout: Layout) -> torch.Tensor:
        cache, i = layout.cache, self.index
        assert cache.store is not None and cache.scratch is not None and layout.lengths is not None
        prefix, scratch = cache.store[i, :, : hidden.shape[0], :, : layout.limit], cache.scratch[i]
        return ops.decoder_layer(
            hidden, *rotary, prefix[0], prefix[1], scratch[0], scratch[1], cache.slot, layout.lengths, self.weights,
            self.biases, *self.options,
        )  # fmt: skip
