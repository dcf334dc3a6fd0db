"""Tiny random models as .gguf files in float32, names and formulas written anew from the format's description."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quantized import dequantized, random_blocks
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["t h", "Ġ th", "i n", "e r", "Ġ a", "o u", "Ġth e"]
TOKENS = [*SPECIAL, *bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in MERGES)]
LENGTH = 512
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    "input_layernorm": "attn_norm",
}  # fmt: skip
TURNED = ("llama", "granite")
GEMMA = ("gemma", "gemma2", "gemma3")
Extra = Callable[[Any], None]


def model_of(kind: str, **settings: Any) -> Any:
    """A model of two layers whose weights are large enough to be told apart by its logits."""
    base = {
        "vocab_size": len(TOKENS), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LENGTH, "bos_token_id": 0,
        "eos_token_id": 0, "pad_token_id": 0, "tie_word_embeddings": False,
    }  # fmt: skip
    config = AutoConfig.for_model(kind, **(base | settings))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            random = torch.randn(parameter.shape, generator=noise)
            parameter.copy_(0.3 * random) if parameter.dim() > 1 else parameter.add_(0.2 * random)
    return model.requires_grad_(False)


def stored_name(architecture: str, key: str) -> str:
    stem, _, suffix = key.rpartition(".")
    if stem in TOP:
        return f"{TOP[stem]}.{suffix}"
    number, _, part = stem.removeprefix("model.layers.").partition(".")
    norms = {"post_attention_layernorm": "ffn_norm"}
    if architecture in ("gemma2", "gemma3"):
        norms = {
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        }
    return f"blk.{number}.{(LAYER | norms)[part]}.{suffix}"


def write_model(
    path: Path,
    model: Any,
    architecture: str,
    extra: Mapping[str, Any] = {},
    tensors: Mapping[str, np.ndarray] = {},
    without: Sequence[str] = (),
    pre: str | None = "gpt-2",
    tokenizer: Extra | None = None,
    kinds: Sequence[str] = ("F32",),
) -> Path:
    """Write the model with extra settings, without some, its matrices of these kinds in turns."""
    gguf = pytest.importorskip("gguf")
    config, writer = model.config, gguf.GGUFWriter(str(path), architecture)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    settings = usual_settings(config, architecture, head) | dict(extra)
    for name, value in settings.items():
        if name not in without:
            add(writer, f"{architecture}.{name}", value)
    (tokenizer or byte_tokenizer)(writer)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    turns = itertools.cycle(kinds)
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values, name = tensor.numpy().astype(np.float32), stored_name(architecture, key)
        if architecture in TURNED and any(part in key for part in ("q_proj", "k_proj")):
            values = values.reshape(-1, 2, head // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if architecture in GEMMA and "norm" in name:
            values = values + 1
        if name not in without:
            kind = gguf.GGMLQuantizationType[next(turns) if values.ndim > 1 else "F32"]
            stored = stored_as(np.ascontiguousarray(values), kind)
            writer.add_tensor(name, stored, raw_dtype=None if kind.name == "F32" else kind)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored_as(values: np.ndarray, kind: Any) -> np.ndarray:
    gguf = pytest.importorskip("gguf")
    if kind.name == "F32":
        return values
    if not kind.name.endswith("_K"):
        return np.asarray(gguf.quants.quantize(values, kind))
    shape = kind.value, len(values), values.shape[1] // 256, len(values)
    size = 0.02 * float(values.std() / dequantized(kind.value, random_blocks(*shape)).std())
    return random_blocks(*shape, size=size).numpy()


def usual_settings(config: Any, architecture: str, head: int) -> dict[str, Any]:
    found = {
        "context_length": config.max_position_embeddings, "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers, "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads, "attention.head_count_kv": config.num_key_value_heads,
    }  # fmt: skip
    rope = config.rope_parameters
    found["rope.freq_base"] = rope.get("full_attention", rope)["rope_theta"]
    if architecture == "starcoder2":
        return found | {"attention.layer_norm_epsilon": config.norm_epsilon}
    found |= {"attention.layer_norm_rms_epsilon": config.rms_norm_eps}
    if architecture in ("llama", "granite", "phi3"):
        found |= {"vocab_size": config.vocab_size, "rope.dimension_count": head}
    if head * config.num_attention_heads != config.hidden_size or architecture in (*GEMMA, "qwen3"):
        found |= {"attention.key_length": head, "attention.value_length": head}
    return found


def add(writer: Any, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)


def byte_tokenizer(writer: Any) -> None:
    gguf = pytest.importorskip("gguf")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)


def llama3_factors(head: int, theta: float, factor: float, low: float, high: float, length: int) -> np.ndarray:
    found = []
    for i in range(0, head, 2):
        wave = 2 * math.pi * theta ** (i / head)
        smooth = min(max((length / wave - low) / (high - low), 0.0), 1.0)
        found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)
