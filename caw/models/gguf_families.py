"""Supported architectures of .gguf files: their settings as a transformers config, and their tensor names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from caw.io.show import shown
from caw.models.gguf_account import Account
from caw.models.gguf_file import GGUFFile
from caw.models.gguf_rope import rope_parameters

TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PARTS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
GEMMA_PARTS = PARTS | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
PHI3_PARTS = PARTS | {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
STARCODER2_PARTS = PARTS | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
ENDS = ("eos", "eot", "eom")
ATTENTION, MLP = ("attn_q", "attn_k", "attn_v", "attn_output"), ("ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class Family:
    """config: transformers' model type. settings: what is its own. parts: names in a file of the parts of a layer.

    turned: whether the two halves of rotary dimensions lie in turns. above: what a file has added to weights of norms.
    optional: whether each bias of a layer may be missing from all layers beside others that are there.
    """

    config: str
    settings: Callable[[Account, dict[str, Any]], dict[str, Any]]
    parts: Mapping[str, str] = field(default_factory=lambda: PARTS)
    turned: bool = False
    above: float = 0.0
    optional: bool = False


def require_family(file: GGUFFile) -> Family:
    """Return the family of a file. ValueError, with its name, for an unsupported architecture."""
    found = FAMILIES.get(file.architecture)
    if found is None:
        raise ValueError(
            f"the architecture of a .gguf file must be one of {', '.join(FAMILIES)}, found {shown(file.architecture)} "
            f"in {file.path.name}; load the model that it was converted from"
        )
    return found


def config_settings(account: Account) -> dict[str, Any]:
    """Return the arguments of transformers' AutoConfig.for_model for a file, its settings ticked off."""
    family = require_family(account.file)
    hidden, heads = account.integer("embedding_length"), account.integer("attention.head_count")
    head = account.integer("attention.key_length", max(hidden // heads, 1))
    if account.integer("attention.value_length", max(hidden // heads, 1)) != head:
        raise account.refused(f"an attention.value_length other than the attention.key_length of {head}")
    embedding = account.file.tensors.get("token_embd.weight")
    vocabulary = account.integer("vocab_size", embedding.shape[0] if embedding else None)
    ends = sorted({i for i in (account.token(name, vocabulary) for name in ENDS) if i is not None})
    common = {
        "max_position_embeddings": account.integer("context_length"),
        "hidden_size": hidden,
        "num_hidden_layers": account.integer("block_count"),
        "intermediate_size": account.integer("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": account.integer("attention.head_count_kv", heads),
        "head_dim": head,
        "vocab_size": vocabulary,
        "tie_word_embeddings": "output.weight" not in account.file.tensors,
        "bos_token_id": account.token("bos", vocabulary),
        "pad_token_id": account.token("padding", vocabulary),
        # a text ends at the end of a text, of a turn and of a message
        "eos_token_id": ends if len(ends) > 1 else next(iter(ends), None),
    }
    for name in ("expert_count", "expert_used_count"):
        account.integer(name, 0, least=0)  # more were refused for what they are
    if not account.flag("attention.causal", True):
        raise account.refused("attention.causal = false")
    return common | family.settings(account, common) | {"model_type": family.config}


def _rope(account: Account, common: dict[str, Any], partial: bool = False) -> dict[str, Any]:
    return rope_parameters(account, common["head_dim"], common["max_position_embeddings"], partial)


def _biased(account: Account, parts: tuple[str, ...]) -> bool:
    return any(f"blk.0.{part}.bias" in account.file.tensors for part in parts)


def _plain(account: Account, common: dict[str, Any]) -> dict[str, Any]:
    return {"rms_norm_eps": account.real("attention.layer_norm_rms_epsilon"), "rope_parameters": _rope(account, common)}


def _llama(account: Account, common: dict[str, Any]) -> dict[str, Any]:
    biases = {"attention_bias": _biased(account, ATTENTION), "mlp_bias": _biased(account, MLP)}
    return _plain(account, common) | biases


def _qwen3(account: Account, common: dict[str, Any]) -> dict[str, Any]:
    return _plain(account, common) | {"attention_bias": _biased(account, ATTENTION)}


def _granite(account: Account, common: dict[str, Any]) -> dict[str, Any]:
    """Zero means "default" in a file."""
    scales = {
        "attention_multiplier": account.real("attention.scale", 0.0) or common["head_dim"] ** -0.5,
        "embedding_multiplier": account.real("embedding_scale", 0.0) or 1.0,
        "residual_multiplier": account.real("residual_scale", 0.0) or 1.0,
        "logits_scaling": account.real("logit_scale", 0.0) or 1.0,
    }
    return _llama(account, common) | scales


def _phi3(account: Account, common: dict[str, Any]) -> dict[str, Any]:
    rope = _rope(account, common, partial=True)
    original = rope.get("original_max_position_embeddings", common["max_position_embeddings"])
    return {
        "rms_norm_eps": account.real("attention.layer_norm_rms_epsilon"),
        "rope_parameters": rope,
        "original_max_position_embeddings": original,
        "sliding_window": account.integer("attention.sliding_window", 0, least=0) or None,
    }


def _starcoder2(account: Account, common: dict[str, Any]) -> dict[str, Any]:
    return {
        "norm_epsilon": account.real("attention.layer_norm_epsilon"),
        "rope_parameters": _rope(account, common),
        "use_bias": _biased(account, (*ATTENTION, *MLP)),
        "sliding_window": account.integer("attention.sliding_window", 0, least=0) or None,
    }


def _windows(account: Account, common: dict[str, Any], window: int, pattern: int) -> dict[str, Any]:
    """Every n-th layer attends to all positions, the others to a window; without a window all do."""
    count = common["num_hidden_layers"]
    listed = account.layers("attention.sliding_window_pattern", count)
    if listed is None:
        pattern = account.integer("attention.sliding_window_pattern", pattern)
        listed = [bool((layer + 1) % pattern) for layer in range(count)]
    local = [bool(each) and window > 0 for each in listed]
    kinds = ["sliding_attention" if each else "full_attention" for each in local]
    return {"layer_types": kinds} | ({"sliding_window": window} if window else {})


def _scale(account: Account, usual: float) -> int:
    """Return transformers' query_pre_attn_scalar: queries are multiplied by its inverse square root."""
    found = account.real("attention.scale", 0.0)
    scalar = found**-2 if found else usual
    if abs(scalar - round(scalar)) > 1e-5 * scalar:
        raise account.refused(f"an attention.scale of {found or usual**-0.5:g}, which is no root of 1 / an integer")
    return round(scalar)


def _cap(account: Account, name: str, default: float) -> float | None:
    return account.real(name, default) or None


def _gemma2(account: Account, common: dict[str, Any]) -> dict[str, Any]:
    large = common["num_hidden_layers"] == 46  # of 27B, which no setting tells
    usual = common["hidden_size"] / common["num_attention_heads"] if large else common["head_dim"]
    own = {
        "query_pre_attn_scalar": _scale(account, usual),
        "attn_logit_softcapping": _cap(account, "attn_logit_softcapping", 50.0),
        "final_logit_softcapping": _cap(account, "final_logit_softcapping", 30.0),
    }
    window = account.integer("attention.sliding_window", 4096, least=0)
    return _plain(account, common) | own | _windows(account, common, window, 2)


def _gemma3(account: Account, common: dict[str, Any]) -> dict[str, Any]:
    large = common["num_hidden_layers"] == 62  # of 27B
    usual = common["hidden_size"] / common["num_attention_heads"] if large else common["head_dim"]
    own = {
        "query_pre_attn_scalar": _scale(account, usual),
        "attn_logit_softcapping": _cap(account, "attn_logit_softcapping", 0.0),
        "final_logit_softcapping": _cap(account, "final_logit_softcapping", 0.0),
        "rms_norm_eps": account.real("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {
            "full_attention": _rope(account, common),
            "sliding_attention": {"rope_type": "default", "rope_theta": account.real("rope.freq_base_swa", 10000.0)},
        },
    }
    window = account.integer("attention.sliding_window", 0, least=0)
    return own | _windows(account, common, window, 6)


FAMILIES = {
    "llama": Family("llama", _llama, turned=True, optional=True),
    "qwen2": Family("qwen2", _plain),
    "qwen3": Family("qwen3", _qwen3, optional=True),
    "granite": Family("granite", _granite, turned=True, optional=True),
    "phi3": Family("phi3", _phi3, PHI3_PARTS),
    "starcoder2": Family("starcoder2", _starcoder2, STARCODER2_PARTS),
    "gemma": Family("gemma", _plain, above=1.0),
    "gemma2": Family("gemma2", _gemma2, GEMMA_PARTS, above=1.0),
    "gemma3": Family("gemma3_text", _gemma3, GEMMA_PARTS, above=1.0),
}
