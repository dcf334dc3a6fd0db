"""Llama and its kin (Mistral, Qwen2, Qwen3) as modules of our own, for commands: transformers' modelling base takes
2.7 s to import, half of the time to a command's first word.

Names, order and settings of their parts are those of transformers' modules, so that whatever looks into a model (fused
layers, fingerprints, .gguf files) finds the same; so are the bits of their results. They read prompts and decode. Any
other forward is that of transformers' own model, made around the same tensors when it is first asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Embedding, Linear
from transformers import GenerationConfig
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
ROTATIONS = ("default", "linear", "llama3", "yarn")  # with the same angles for texts of all lengths


class Settings:
    """What transformers' config says: the entries of its `to_dict`."""

    def __init__(self, entries: dict[str, Any]) -> None:
        self.__dict__.update(entries)
        self._entries = entries
        self.head_dim = entries.get("head_dim") or entries["hidden_size"] // entries["num_attention_heads"]

    def get_text_config(self, decoder: bool | None = None) -> Settings:
        return self

    def to_dict(self) -> dict[str, Any]:
        return dict(self._entries)

    def standardize_rope_params(self) -> None:
        """Do nothing: the config that it comes from did."""


def has_modules(entries: dict[str, Any]) -> bool:
    """Tell whether a config's entries ask for nothing but what the modules here compute."""
    rotation = entries.get("rope_parameters") or {}
    usual = rotation.get("rope_type") in ROTATIONS and rotation.get("partial_rotary_factor", 1.0) == 1.0
    asked = (entries.get(name) for name in ("sliding_window", "quantization_config"))
    return entries.get("model_type") in FAMILIES and entries.get("hidden_act") == "silu" and usual and not any(asked)


def _linear(inputs: int, outputs: int, bias: bool) -> Linear:
    return Linear(inputs, outputs, bias=bias, device="meta")


class RMSNorm(torch.nn.Module):
    """Divide by the root of the mean square in float32, then multiply by the weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = torch.nn.Parameter(torch.empty(size, device="meta")), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(x.dtype)


class RotaryEmbedding(torch.nn.Module):
    """Cosines and sines of positions int64 [R, T]: twice [R, T, D] in the dtype of x."""

    inv_freq: torch.Tensor

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, self.rope_type = config, config.rope_parameters["rope_type"]
        if self.rope_type == "default":
            steps = torch.arange(0, config.head_dim, 2, dtype=torch.float) / config.head_dim
            frequencies, self.attention_scaling = 1.0 / (config.rope_parameters["rope_theta"] ** steps), 1.0
        else:
            frequencies, self.attention_scaling = ROPE_INIT_FUNCTIONS[self.rope_type](config)
        self.register_buffer("inv_freq", frequencies, persistent=False)
        self.register_buffer("original_inv_freq", frequencies.clone(), persistent=False)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].float() * self.inv_freq
        both = torch.cat((angles, angles), dim=-1)
        cos, sin = both.cos() * self.attention_scaling, both.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


class MLP(torch.nn.Module):
    """Gated by SiLU."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        sizes = config.hidden_size, config.intermediate_size
        bias = config.model_type == "llama" and config.mlp_bias
        self.gate_proj, self.up_proj = (_linear(*sizes, bias) for _ in range(2))
        self.down_proj = _linear(*sizes[::-1], bias)
        self.act_fn = torch.nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return found


class Attention(torch.nn.Module):
    """Attention of decoding: the layout of a forward knows how its rows attend."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx, self.head_dim = config, layer_idx, config.head_dim
        self.scaling, kind = config.head_dim**-0.5, config.model_type
        width, kept = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        bias = kind == "qwen2" or (kind != "mistral" and config.attention_bias)
        self.q_proj = _linear(config.hidden_size, width, bias)
        self.k_proj, self.v_proj = (_linear(config.hidden_size, kept, bias) for _ in range(2))
        self.o_proj = _linear(width, config.hidden_size, bias and kind != "qwen2")
        if kind == "qwen3":
            self.q_norm, self.k_norm = (_named("Qwen3", RMSNorm)(self.head_dim, config.rms_norm_eps) for _ in range(2))

    def forward(self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], cache: Any, layout: Any) -> Any:
        shape, normed = (*x.shape[:-1], -1, self.head_dim), self.config.model_type == "qwen3"
        query, key, value = (layer(x).view(shape) for layer in (self.q_proj, self.k_proj, self.v_proj))
        if normed:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = (_turned(heads.transpose(1, 2), *rotary) for heads in (query, key))
        key, value = cache.update(key, value.transpose(1, 2), self.layer_idx)
        return self.o_proj(layout.attend(self, query, key, value, self.scaling).reshape(*x.shape[:-1], -1))


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return (x * cos[:, None]) + (torch.cat((-second, first), dim=-1) * sin[:, None])


class DecoderLayer(torch.nn.Module):
    """One layer of a family."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__()
        family = FAMILIES[config.model_type]
        self.self_attn, self.mlp = _named(family, Attention)(config, layer_idx), _named(family, MLP)(config)
        norm = _named(family, RMSNorm)
        self.input_layernorm = norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden: torch.Tensor, *, position_embeddings: Any, past_key_values: Any, caw_layout: Any) -> Any:
        normed = self.input_layernorm(hidden)
        hidden = hidden + self.self_attn(normed, position_embeddings, past_key_values, caw_layout)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Model(torch.nn.Module):
    """Embeddings, layers and norm."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, family = config, FAMILIES[config.model_type]
        size = config.vocab_size, config.hidden_size
        # drawn numbers would bring torch's compiler, another second
        self.embed_tokens = Embedding(*size, _weight=torch.empty(size, device="meta"))
        layer = _named(family, DecoderLayer)
        self.layers = torch.nn.ModuleList(layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = _named(family, RMSNorm)(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = _named(family, RotaryEmbedding)(config)

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, past_key_values: Any, caw_layout: Any, **kwargs: Any
    ) -> BaseModelOutputWithPast:
        hidden = self.embed_tokens(input_ids)
        given = {"past_key_values": past_key_values, "caw_layout": caw_layout}
        rotary = self.rotary_emb(hidden, position_ids=position_ids)
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=rotary, **given)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden), past_key_values=past_key_values)


_classes: dict[tuple[str, type], Any] = {}


def _named(family: str, base: type[torch.nn.Module]) -> Any:
    """Return the class under the family's name, by which fused layers know it."""
    return _classes.setdefault((family, base), type(family + base.__name__, (base,), {"__module__": __name__}))


class LanguageModel(torch.nn.Module):
    """A causal language model whose `Settings` pass `has_modules`, its weights on the meta device.

    ends: entries of its generation config.
    """

    _supports_attention_backend = True

    def __init__(self, config: Settings, ends: dict[str, Any]) -> None:
        super().__init__()
        self.config, self.generation_config = config, GenerationConfig(**ends)
        self.model = _named(FAMILIES[config.model_type], Model)(config)  # type: ignore[attr-defined]
        self.lm_head = _linear(config.hidden_size, config.vocab_size, False)  # type: ignore[attr-defined]
        self._whole: list[Any] = []

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def get_output_embeddings(self) -> Any:
        return self.lm_head

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None, past_key_values: Any = None,
        logits_to_keep: int | torch.Tensor = 0, caw_layout: Any = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Return what transformers' forward does; without a layout of decoding, from its own model."""
        given = {"input_ids": input_ids, "position_ids": position_ids, "past_key_values": past_key_values}
        if caw_layout is None:
            return self.whole()(**given, logits_to_keep=logits_to_keep, **kwargs)
        hidden = self.model(**given, caw_layout=caw_layout, **kwargs).last_hidden_state
        rows = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return CausalLMOutputWithPast(logits=self.lm_head(hidden[:, rows]), past_key_values=past_key_values)

    @property
    def base_model(self) -> Any:
        return self.whole().model

    def whole(self) -> Any:
        """Return transformers' model around the same tensors."""
        if not self._whole:
            from transformers import AutoConfig, AutoModelForCausalLM

            config = AutoConfig.for_model(**self.config.to_dict())
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, dtype=self.dtype)
            for name, module in self.named_modules():
                parent, _, part = name.rpartition(".")
                if isinstance(module, RMSNorm):
                    model.get_submodule(name).weight = module.weight
                elif type(module).__module__ != __name__ and not list(module.children()):
                    setattr(model.get_submodule(parent), part, module)
            model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
            self._whole.append(model.eval())
        return self._whole[0]
