"""Kinds of decoder layers that share one formula (`Family`): the names of their parts, and their arithmetic."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from caw.models import llamas
from caw.triton_kernels.decoder_layer_ref import FAMILIES, LLAMA
from caw.triton_kernels.small_linear_ref import GELU_TANH, SILU

PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
               "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # fmt: skip
MERGED = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
NORMS = ("input_layernorm", "post_attention_layernorm")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
# torch's and transformers' names of one function
ACTIVATIONS = {SILU: ("SiLU", "SiLUActivation"), GELU_TANH: ("GELUTanh", "PytorchGELUTanh")}


@dataclass(frozen=True)
class LayerKind:
    """One class of layers.

    prefix: of the names of its classes. family: of FAMILIES, its arithmetic. norms: before attention and before the
    MLP; after: of what they give. head_norms: whether queries and keys are normalised. merged: whether queries, keys
    and values are one matrix, gate and up another. idle: parts that do nothing outside of training. capped: whether it
    hands attention a cap of the scores. multiplier: the attribute of a layer that multiplies what attention and the MLP
    give. body: the class around its layers, its name after the prefix. turned_by_type: whether the body has another
    rotation for each type of layer. embedding_multiplier: the attribute of the body that multiplies embeddings. gpu:
    whether a GPU's operators know it too.
    """

    prefix: str
    family: str = LLAMA
    norms: tuple[str, str] = NORMS
    after: tuple[str, ...] = ()
    head_norms: bool = False
    merged: bool = False
    idle: tuple[str, ...] = ()
    activation: str = "mlp.act_fn"
    capped: bool = False
    multiplier: str | None = None
    body: str = "Model"
    turned_by_type: bool = False
    embedding_multiplier: str | None = None
    gpu: bool = True

    @property
    def as_llama(self) -> bool:
        """Tell whether it has Llama's matrices and arithmetic."""
        return self.family == LLAMA and not self.merged and self.multiplier is None

    @property
    def matrices(self) -> tuple[str, ...]:
        """Names of its linear layers, in the order of the operators' weights."""
        return MERGED if self.merged else PROJECTIONS

    @property
    def order(self) -> tuple[str, ...]:
        """Names of all parts with weights, in the order of the operators' weights."""
        first = 2 if self.merged else 4
        heads = HEAD_NORMS if self.head_norms else ()
        return (self.norms[0], *self.matrices[:first], self.norms[1], *self.matrices[first:], *heads, *self.after)

    @property
    def all_norms(self) -> tuple[str, ...]:
        return (*self.norms, *self.after, *(HEAD_NORMS if self.head_norms else ()))

    def parts(self, linear: str) -> dict[str, str]:
        """Every part's class by the part's name, "" for the layer; linear: the class of its linear layers."""
        return {
            "": f"{self.prefix}DecoderLayer", "self_attn": f"{self.prefix}Attention", "mlp": f"{self.prefix}MLP",
            **dict.fromkeys(self.all_norms, f"{self.prefix}RMSNorm"), **dict.fromkeys(self.matrices, linear),
            **dict.fromkeys(self.idle, "Dropout"),
        }  # fmt: skip

    def activates(self, module: torch.nn.Module) -> bool:
        """Tell whether the module is the activation of this family."""
        return type(module).__name__ in ACTIVATIONS[FAMILIES[self.family].activation]


_AROUND = {
    "norms": ("input_layernorm", "pre_feedforward_layernorm"),
    "after": ("post_attention_layernorm", "post_feedforward_layernorm"),
}
_KINDS: dict[str, LayerKind] = {
    "llama": LayerKind("Llama"),
    "mistral": LayerKind("Mistral"),
    "qwen2": LayerKind("Qwen2"),
    "qwen3": LayerKind("Qwen3", head_norms=True),
    "gemma": LayerKind("Gemma", "gemma"),
    "gemma2": LayerKind("Gemma2", "gemma2", **_AROUND, capped=True),  # type: ignore[arg-type]
    "gemma3": LayerKind("Gemma3", "gemma2", **_AROUND, head_norms=True, body="TextModel",  # type: ignore[arg-type]
                        turned_by_type=True),
    "phi3": LayerKind("Phi3", merged=True, idle=("resid_attn_dropout", "resid_mlp_dropout"),
                      activation="mlp.activation_fn"),
    "granite": LayerKind("Granite", multiplier="residual_multiplier", embedding_multiplier="embedding_multiplier",
                         gpu=False),
}  # fmt: skip
# class of the layer -> its kind; other classes, subclasses among them, run as they are
LAYERS = {
    f"transformers.models.{module}.modeling_{module}.{kind.prefix}DecoderLayer": kind for module, kind in _KINDS.items()
}
# those of our own, for commands on a CPU
LAYERS |= {
    f"{llamas.__name__}.{kind.prefix}DecoderLayer": replace(kind, gpu=False)
    for module, kind in _KINDS.items() if module in llamas.FAMILIES
}  # fmt: skip
LLAMAS = {name for name, kind in LAYERS.items() if kind.as_llama}
ON_GPU = {name: kind for name, kind in LAYERS.items() if kind.gpu}
# classes of embedding, layers and norm whose layers a CPU runs as one
BODIES = {name.removesuffix("DecoderLayer") + kind.body for name, kind in LAYERS.items()}


def class_name(module: Any) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def kind_of(layer: Any) -> LayerKind | None:
    """Return the kind of a layer by its class alone."""
    return LAYERS.get(class_name(layer))


def rows_of(layer: Any, kind: LayerKind, i: int, count: int) -> list[int]:
    """Return how many of the `count` rows of `kind.matrices[i]` belong to each of PROJECTIONS that it holds."""
    if kind.merged and i == 0:
        attention = layer.self_attn
        heads, kv = attention.config.num_attention_heads, attention.num_key_value_heads
        return [n * attention.head_dim for n in (heads, kv, kv)]
    return [count // 2] * 2 if kind.merged and i == 2 else [count]


def split(layer: Any, kind: LayerKind, tensors: list[Any]) -> list[Any]:
    """Split tensors in the order of `kind.matrices` into the rows of each of PROJECTIONS; each may be None.

    Views of merged ones, made anew at each call: somebody may give a parameter other memory.
    """
    if not kind.merged:
        return tensors
    parts = []
    for i, tensor in enumerate(tensors):
        sizes = rows_of(layer, kind, i, 0 if tensor is None else tensor.shape[0])
        if len(sizes) == 1:
            parts.append(tensor)
        else:
            parts += [None] * len(sizes) if tensor is None else tensor.detach().split(sizes)
    return parts
