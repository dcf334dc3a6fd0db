"""Check by the config which models can branch; what only attention shows is checked in `forward/attention.py`."""

import inspect
from typing import Any

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
RECURRENT_LAYERS = ("mamba", "linear", "recurrent", "rwkv", "ssm", "conv", "rglru")
RECURRENT_MODELS = ("mamba", "rwkv", "jamba", "bamba", "falcon_h1", "zamba", "recurrent_gemma", "nemotron_h", "lfm2",
                    "xlstm")  # fmt: skip
LEGACY_MODELS = ("bloom", "mpt", "codegen", "gptj", "gpt_neo", "falcon", "xglm", "ctrl", "xlnet", "reformer")
LATENT_MODELS = ("deepseek_v", "minicpm3", "longcat_flash")
SHARED_KV_MODELS = ("gemma3n", "gemma4")


def check_weights(model: Any) -> None:
    """Raise ValueError for weights in a dtype that no kernel supports, or without data (the meta device)."""
    wide = next((p.dtype for p in model.parameters() if p.dtype == torch.float64 or p.is_complex()), None)
    found = wide or model.dtype
    if found not in DTYPES:
        raise ValueError(
            f"the model must be in float32, bfloat16 or float16, found {str(found).removeprefix('torch.')} weights; "
            "convert it with model.float()"
        )
    if not getattr(model, "hf_device_map", None) and any(p.is_meta for p in model.parameters()):
        raise ValueError("the model must hold its weights, found some on the meta device; load it with from_pretrained")


def refusal(kind: str, reason: str) -> NotImplementedError:
    """Return the error for a model that cannot branch; `kind` is its model type."""
    return NotImplementedError(
        f"the model must be a decoder whose candidates can share one forward pass, got {kind!r}: {reason}; use a "
        "model like "
        "Llama, Qwen2, Qwen3, Mistral, Gemma, Phi-3, GPT-2 or OPT"
    )


def branchable_config(model: Any) -> Any:
    """Return the text config if candidates can share a forward. NotImplementedError with the reason for others."""
    if hasattr(model, "merge_and_unload"):  # of PEFT
        raise NotImplementedError(
            "the model must be a transformers model itself, got adapters around one; pass model.merge_and_unload()"
        )
    config = model.config.get_text_config(decoder=True)
    reason = _reason(model, config, config.model_type)
    if reason:
        raise refusal(config.model_type, reason)
    return config


def _reason(model: Any, config: Any, kind: str) -> str:
    if hasattr(model, "_orig_mod"):
        return "torch.compile has wrapped it; pass the model itself and compile=True"
    layers = [str(t) for t in getattr(config, "layer_types", None) or []]
    recurrent = [t for t in layers if any(mark in t for mark in RECURRENT_LAYERS)]
    if recurrent or any(name in kind for name in RECURRENT_MODELS):
        detail = f" ({recurrent[0]} layers)" if recurrent else ""
        return f"its recurrent state{detail} cannot be forked for siblings"
    if getattr(model.config, "is_encoder_decoder", False):
        return "encoder-decoder models are not supported"
    if hasattr(config, "type_vocab_size"):
        return "it is an encoder, whose positions and attention are not a decoder's"
    if any(kind.startswith(name) for name in LATENT_MODELS) or getattr(config, "kv_lora_rank", None):
        return "its latent attention keeps no plain keys and values"
    if any(kind.startswith(name) for name in SHARED_KV_MODELS) or getattr(config, "num_kv_shared_layers", None):
        return "its layers share keys and values"
    if kind in LEGACY_MODELS:
        return "its attention does not go through transformers' attention interface"
    if any("chunked" in t for t in layers):
        return "chunked attention layers are not supported"
    if not getattr(model, "_supports_attention_backend", False):
        return "its attention does not go through transformers' attention interface"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "its forward does not take position ids"
    return ""
