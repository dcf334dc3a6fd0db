"""Llama and its kin (Mistral, Qwen2, Qwen3) as modules of our own, for commands: transformers' modelling base takes
2.7 s to import, half of the time to a command's first word.

Names, order and settings of their parts are those of transformers' modules, so that whatever looks into a model (fused
layers, fingerprints, .gguf files) finds the same; so are the bits of their results. They read prompts and decode. Any
other forward is that of transformers' own model, made around the same parts when it is first asked for.
"""

from functools import cache, cached_property
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from caw import ops

FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
ROTATIONS = ("default", "linear", "llama3", "yarn")  # with the same angles for texts of all lengths


class Settings:
    """What transformers' config says: the entries of its `to_dict`."""

    def __init__(self, entries: dict[str, Any]) -> None:
        self.__dict__.update(entries)
        self._entries, self.dtype = tuple(entries), entries["dtype"]
        self.head_dim = entries.get("head_dim") or entries["hidden_size"] // entries["num_attention_heads"]

    def get_text_config(self, decoder: bool | None = None) -> "Settings":
        return self

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._entries} | {"dtype": str(self.dtype).removeprefix("torch.")}

    def standardize_rope_params(self) -> None:
        """Do nothing: the config that it comes from did."""


def has_modules(entries: dict[str, Any]) -> bool:
    """Tell whether a config's entries ask for nothing but what the modules here compute."""
    rotation = entries.get("rope_parameters") or {}
    usual = rotation.get("rope_type") in ROTATIONS and rotation.get("partial_rotary_factor", 1.0) == 1.0
    other = entries.get("sliding_window") or entries.get("quantization_config") or ops.missing_extension()
    return entries.get("model_type") in FAMILIES and entries.get("hidden_act") == "silu" and usual and not other


class Part(torch.nn.Module):
    """Linear layers by name, with inputs, outputs and whether they have a bias; the layer around it runs them."""

    def __init__(self, **sizes: tuple[int, int, bool]) -> None:
        super().__init__()
        for name, (inputs, outputs, bias) in sizes.items():
            setattr(self, name, torch.nn.Linear(inputs, outputs, bias, device="meta"))


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
        rotation, self.attention_scaling = config.rope_parameters, 1.0
        if rotation["rope_type"] == "default":
            steps = torch.arange(0, config.head_dim, 2, dtype=torch.float) / config.head_dim
            frequencies = 1.0 / (rotation["rope_theta"] ** steps)
        else:
            frequencies, self.attention_scaling = ROPE_INIT_FUNCTIONS[rotation["rope_type"]](config)
        self.register_buffer("inv_freq", frequencies, persistent=False)
        self.register_buffer("original_inv_freq", frequencies.clone(), persistent=False)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].float() * self.inv_freq
        both = torch.cat((angles, angles), dim=-1)
        cos, sin = both.cos() * self.attention_scaling, both.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


class DecoderLayer(torch.nn.Module):
    """One layer of a family, for forwards with a layout of decoding, which knows how its rows attend."""

    def __init__(self, config: Any, index: int) -> None:
        super().__init__()
        kind, dim = config.model_type, config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size
        width, kv_width = config.num_attention_heads * dim, config.num_key_value_heads * dim
        bias = kind == "qwen2" or (kind != "mistral" and config.attention_bias)
        self.self_attn = attention = _class(kind, Part, "Attention")(
            q_proj=(hidden, width, bias), k_proj=(hidden, kv_width, bias), v_proj=(hidden, kv_width, bias),
            o_proj=(width, hidden, bias and kind != "qwen2"),
        )  # fmt: skip
        attention.config, attention.layer_idx, attention.head_dim, attention.scaling = config, index, dim, dim**-0.5
        norm, eps, bias = _class(kind, RMSNorm), config.rms_norm_eps, kind == "llama" and config.mlp_bias
        if kind == "qwen3":
            attention.q_norm, attention.k_norm = norm(dim, eps), norm(dim, eps)
        self.mlp = _class(kind, Part, "MLP")(
            gate_proj=(hidden, inner, bias), up_proj=(hidden, inner, bias), down_proj=(inner, hidden, bias)
        )
        self.mlp.act_fn = torch.nn.SiLU()
        self.input_layernorm, self.post_attention_layernorm = norm(hidden, eps), norm(hidden, eps)

    def forward(self, hidden: torch.Tensor, *, position_embeddings: Any, past_key_values: Any, caw_layout: Any) -> Any:
        attention, mlp, x = self.self_attn, self.mlp, self.input_layernorm(hidden)
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        query, key, value = (layer(x).view(*x.shape[:-1], -1, attention.head_dim) for layer in projections)
        if hasattr(attention, "q_norm"):
            query, key = attention.q_norm(query), attention.k_norm(key)
        query, key = (_turned(heads.transpose(1, 2), *position_embeddings) for heads in (query, key))
        key, value = past_key_values.update(key, value.transpose(1, 2), attention.layer_idx)
        heads = caw_layout.attend(attention, query, key, value, attention.scaling)
        hidden = hidden + attention.o_proj(heads.reshape(*x.shape[:-1], -1))
        x = self.post_attention_layernorm(hidden)
        return hidden + mlp.down_proj(mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x))


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return (x * cos[:, None]) + (torch.cat((-second, first), dim=-1) * sin[:, None])


class Model(torch.nn.Module):
    """Embeddings, layers and norm."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, kind, size = config, config.model_type, (config.vocab_size, config.hidden_size)
        # drawn numbers would bring torch's compiler, another second
        self.embed_tokens = torch.nn.Embedding(*size, _weight=torch.empty(size, device="meta"))
        layer = _class(kind, DecoderLayer)
        self.layers = torch.nn.ModuleList(layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = _class(kind, RMSNorm)(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, **given: Any) -> BaseModelOutputWithPast:
        hidden, given = self.embed_tokens(input_ids), {name: given[name] for name in ("past_key_values", "caw_layout")}
        rotary = self.rotary_emb(hidden, position_ids=position_ids)
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=rotary, **given)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden), past_key_values=given["past_key_values"])


@cache
def _class(kind: str, base: type[torch.nn.Module], name: str = "") -> Any:
    """Return the class under the family's name, by which fused layers know it."""
    return type(FAMILIES[kind] + (name or base.__name__), (base,), {"__module__": __name__})


class LanguageModel(torch.nn.Module):
    """A causal language model whose config passes `has_modules`, its weights on the meta device.

    entries, generation: of its config and of its generation config.
    """

    _supports_attention_backend = True

    def __init__(self, entries: dict[str, Any], generation: dict[str, Any]) -> None:
        super().__init__()
        self.config, self.generation_config = Settings(entries), GenerationConfig(**generation)
        self.model = _class(entries["model_type"], Model)(self.config)
        self.lm_head = torch.nn.Linear(entries["hidden_size"], entries["vocab_size"], bias=False, device="meta")

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def get_output_embeddings(self) -> Any:
        return self.lm_head

    def forward(self, input_ids: torch.Tensor, position_ids: Any = None, logits_to_keep: Any = 0, **given: Any) -> Any:
        """Return what transformers' forward does; without a layout of decoding, from its own model."""
        if given.get("caw_layout") is None:
            return self.whole(input_ids, position_ids=position_ids, logits_to_keep=logits_to_keep, **given)
        output = self.model(input_ids, position_ids=position_ids, **given)
        positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(output.last_hidden_state[:, positions])
        return CausalLMOutputWithPast(logits=logits, past_key_values=output.past_key_values)

    @property
    def base_model(self) -> Any:
        return self.whole.model

    @cached_property
    def whole(self) -> Any:
        """Return transformers' model around the same parts."""
        from transformers import AutoConfig, AutoModelForCausalLM

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**self.config.to_dict()), dtype=self.dtype)
        for name, part in self.named_modules():
            if not list(part.children()):
                parent, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(parent), leaf, part)
        return model.eval()
