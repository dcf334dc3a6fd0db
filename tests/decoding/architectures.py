"""Tiny random models of every supported architecture, a tokenizer for them, and an evaluator that really decides."""

import functools
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

import caw
from caw.evaluator import Evaluator
from caw.evaluator.features import FeatureSpec
from caw.evaluator.token_classes import CLASSES
from caw.record import Record

VOCAB = 131  # prime, above K = 100, so that records do not hold the whole vocabulary
PAD, BOS, EOS = 0, 1, 2
POSITIONS = 128
WINDOW = 6  # shorter than the prompts

_IDS = {
    "vocab_size": VOCAB,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "tie_word_embeddings": False,
}
_BASE = {**_IDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "max_position_embeddings": POSITIONS}  # fmt: skip
GQA = {**_BASE, "num_key_value_heads": 2}
_HEADS = {**GQA, "head_dim": 12}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**GQA, "num_hidden_layers": 3}),
    "qwen2": ("qwen2", GQA),
    "qwen2-window": ("qwen2", {**GQA, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("qwen3", _HEADS),
    "mistral": ("mistral", {**GQA, "sliding_window": WINDOW}),
    "gemma": ("gemma", _HEADS),
    "gemma2": ("gemma2", {**_HEADS, "sliding_window": WINDOW, "query_pre_attn_scalar": 12,
                          "attn_logit_softcapping": 2.0}),  # low, so that leaving it out shows
    "gemma3": ("gemma3_text", {**_HEADS, "sliding_window": WINDOW, "query_pre_attn_scalar": 12, "num_hidden_layers": 3,
                               "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "phi3": ("phi3", {**GQA, "sliding_window": WINDOW}),
    "gpt2": ("gpt2", {**_IDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS}),
    "opt": ("opt", {**_IDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48,
                    "word_embed_proj_dim": 32, "max_position_embeddings": POSITIONS}),
    "phi": ("phi", _BASE),
    "olmo2": ("olmo2", GQA),
    "gpt_neox": ("gpt_neox", _BASE),
    "starcoder2": ("starcoder2", {**GQA, "sliding_window": WINDOW}),
    "granite": ("granite", {**GQA, "attention_multiplier": 0.2, "residual_multiplier": 0.4, "embedding_multiplier": 3.0,
                            "logits_scaling": 1.5}),
    "mixtral": ("mixtral", {**GQA, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("qwen3_moe", {**_HEADS, **_EXPERTS, "num_experts": 4}),
    "cohere": ("cohere", {**GQA, "logit_scale": 1.0}),
    "glm": ("glm", _HEADS),
    "smollm3": ("smollm3", {**GQA, "num_hidden_layers": 4}),  # the fourth layer has no rotary embedding
    "gpt_oss": ("gpt_oss", {**_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW}),
}  # fmt: skip


@functools.cache
def build(name: str) -> Any:
    """The float32 model `name`; weights spread so that a wrong mask, window, cap or sink shows in the logits."""
    return from_config(*CONFIGS[name], seed=sum(name.encode()))


def from_config(kind: str, settings: dict[str, Any], seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    # transformers 5.17 gives a model with a softcap an attention that leaves the cap out
    own = {"attn_implementation": "eager"} if "attn_logit_softcapping" in settings else {}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings), dtype=torch.float32, **own).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(0.25 * noise)
            else:  # biases, norms, sinks: none may be 0, or leaving it out would not show
                parameter.add_(0.2 * noise)
    return model.requires_grad_(False)


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()


def character(token: int) -> str:
    """The text of one ordinary token: a distinct character, so that texts and ids determine each other."""
    return chr(ord("!") + token - 3) if token < 97 else chr(0x4E00 + token)


@functools.cache
def tokenizer() -> Any:
    """One character a token, ids 0 to 2 special, for all tiny models."""
    vocabulary = {"<pad>": PAD, "<s>": BOS, "</s>": EOS, **{character(i): i for i in range(3, VOCAB)}}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left"
    )


def spread_evaluator(
    model: Any, previous: int = 1, following: int = 1, transform: str = "log", classes: bool = False
) -> Evaluator:
    """A random evaluator, standardised on this model's own features so that capacities spread over (0, 1)."""
    generator = torch.Generator().manual_seed(7)
    spec = FeatureSpec(previous, following, transform=transform, classes=len(CLASSES) if classes else 0)
    table = torch.randint(0, len(CLASSES), (VOCAB,), generator=generator).to(torch.uint8) if classes else None
    evaluator = Evaluator(spec, hidden=8, token_class=table)
    ids = torch.tensor([prompt(60, seed=99)])
    with torch.inference_mode():
        for parameter in evaluator.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        records = Record.from_logits(model(ids, use_cache=False).logits[0])
        features = evaluator.spec.assemble(
            [records.take(torch.arange(previous + k, 60 - following + k)) for k in range(-previous, following + 1)],
            evaluator.token_class,
        )
        evaluator.mean.copy_(features.mean(0))
        evaluator.scale.copy_(features.std(0).clamp_min(1e-3) * features.shape[1] ** 0.5)
        raw = evaluator.logits(features)
        evaluator.layer3.weight.mul_(1.5 / raw.std())
        evaluator.layer3.bias.copy_((evaluator.layer3.bias - raw.mean()) * 1.5 / raw.std())
    return evaluator.eval().requires_grad_(False)


RAGGED = [prompt(11, 1), prompt(1, 2), prompt(7, 3), prompt(3, 4)]


def policy_of(model: Any, theta: float = 0.8) -> Any:
    return caw.CapacityPolicy(spread_evaluator(model), theta=theta, beta=1.5)
